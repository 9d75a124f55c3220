package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener that takes the connections of a test.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// visitor is the far end of a connection to a page.
type visitor struct {
	net.Conn
	over chan struct{} // closed when the page has closed it
	got  strings.Builder
}

// visit connects, writes what it is given, and reads all that comes.
func (p pipes) visit(text string) *visitor {
	near, far := net.Pipe()
	p <- near
	v := &visitor{Conn: far, over: make(chan struct{})}
	go func() {
		defer close(v.over)
		_, _ = io.Copy(&v.got, far) // ends when either side closes
	}()
	go io.WriteString(far, text)
	return v
}

func (v *visitor) isOver() bool {
	select {
	case <-v.over:
		return true
	default:
		return false
	}
}

func crowded(t *testing.T, test func(p pipes)) {
	synctest.Test(t, func(*testing.T) {
		handler := http.NewServeMux()
		handler.HandleFunc("/page", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "the page") })
		handler.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		s, p := pageServer(handler, scrapeMax), make(pipes)
		go s.Serve(p)
		test(p)
		close(p) // Close waits for Serve
		s.Close()
		synctest.Wait()
	})
}

const askPage = "GET /page HTTP/1.1\r\nHost: h\r\n\r\n"

// Whatever a connection does, or does not, it has an end.
func TestPagesWaitForNobody(t *testing.T) {
	for _, c := range []struct {
		name, text string
		most       time.Duration
	}{
		{"nothing", "", headerMax},
		{"half a header", askPage[:len(askPage)-2], headerMax},
		{"a request, and no other", askPage, idleMax},
		{"a body that does not come", "POST /page HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nx", scrapeMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			crowded(t, func(p pipes) {
				began := time.Now()
				v := p.visit(c.text)
				defer v.Close()
				select {
				case <-v.over:
				case <-time.After(time.Hour):
					t.Error("held for ever")
				}
				if took := time.Since(began); took > c.most+time.Second {
					t.Errorf("held for %v, want %v", took, c.most)
				}
			})
		})
	}
}

// The page holds pageConnsMax connections and no more; one that asks is answered, however many only stand there, and one that is being answered is not sent away for them.
func TestCrowdKeepsNobodyFromThePage(t *testing.T) {
	crowded(t, func(p pipes) {
		first := p.visit("GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
		synctest.Wait()
		var crowd []*visitor
		for range 10 * pageConnsMax {
			crowd = append(crowd, p.visit("GET /page HTTP"))
		}
		asks := p.visit("")
		go io.WriteString(asks, askPage)
		synctest.Wait()
		asks.Close()
		<-asks.over
		resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(asks.got.String())), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("a good visitor got %q, %v", asks.got.String(), err)
		}
		synctest.Wait()
		open := 0
		for _, v := range crowd {
			if !v.isOver() {
				open++
			}
			v.Close()
		}
		if open > pageConnsMax {
			t.Errorf("%d connections that ask nothing are open, want at most %d", open, pageConnsMax)
		}
		if first.isOver() {
			t.Error("one that was being served was sent away")
		}
		first.Close()
	})
}
