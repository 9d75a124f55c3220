package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"dledger"
)

// pages are the HTTP servers of a process. Whoever reaches their ports gets neither descriptors nor memory of the process beyond what pageConnsMax
// connections take, and none for longer than the times below.
type pages struct{ servers []*http.Server }

const (
	pageConnsMax = 32               // of one page at a time
	headerMax    = 10 * time.Second // for the header of a request
	idleMax      = 2 * time.Minute  // between two requests, as on the other ports
	scrapeMax    = 30 * time.Second // for a request and its answer
	profileMax   = 10 * time.Minute // for a profile, which is refused if it is to take longer
)

// servePages opens those that are asked for.
func servePages(metricsAddress, pprofAddress string, ledgers []*dledger.Ledger) (*pages, error) {
	p := new(pages)
	if metricsAddress != "" {
		registry := prometheus.NewRegistry()
		registry.MustRegister(newCollector(ledgers), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		mux := http.NewServeMux()
		mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		if err := p.serve("--metrics", metricsAddress, mux, scrapeMax); err != nil {
			return nil, err
		}
	}
	if pprofAddress != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		if err := p.serve("--pprof", pprofAddress, mux, profileMax); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return p, nil
}

func (p *pages) serve(flag, address string, handler http.Handler, most time.Duration) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s %s: %w", flag, address, err)
	}
	s := pageServer(handler, most)
	p.servers = append(p.servers, s)
	go s.Serve(l) // ends with close
	return nil
}

func (p *pages) close() error {
	var errs []error
	for _, s := range p.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// pageServer serves handler to a crowd; a request and its answer may take so long. It is the read time-out too: one that passes while a handler works would
// cut it short.
func pageServer(handler http.Handler, most time.Duration) *http.Server {
	c := new(crowd)
	return &http.Server{
		Handler:   c.guard(handler),
		ConnState: c.changed,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ReadHeaderTimeout: headerMax,
		ReadTimeout:       most,
		WriteTimeout:      most,
		IdleTimeout:       idleMax,
	}
}

// crowd keeps the connections of a server within pageConnsMax. One more takes the place of the oldest that is not being served: so whoever asks at once is
// answered, however many others hold connections and ask nothing, and a scraper that has lost its connection makes another.
type crowd struct {
	mu    sync.Mutex
	conns []member // by age
}

// connKey is what a request's context has its connection under.
type connKey struct{}

type member struct {
	conn   net.Conn
	served bool // a handler works for it
}

// changed is the server's ConnState.
func (c *crowd) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.conns = append(c.conns, member{conn: conn})
		if len(c.conns) > pageConnsMax {
			i := slices.IndexFunc(c.conns, func(m member) bool { return !m.served }) // the new one if there is no other
			c.conns[i].conn.Close()                                                  // of a socket; its goroutine notices and ends
			c.conns = slices.Delete(c.conns, i, i+1)
		}
	case http.StateClosed, http.StateHijacked:
		c.conns = slices.DeleteFunc(c.conns, func(m member) bool { return m.conn == conn })
	}
}

// guard tells which connections are being served.
func (c *crowd) guard(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(connKey{}).(net.Conn)
		c.serving(conn, true)
		defer c.serving(conn, false)
		handler.ServeHTTP(w, r)
	})
}

func (c *crowd) serving(conn net.Conn, served bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.conns {
		if c.conns[i].conn == conn {
			c.conns[i].served = served
		}
	}
}
