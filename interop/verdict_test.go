package interop

import (
	"bytes"
	bigendian "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"dledger/interop/harness"
)

// verdict is what a port may answer to somebody with ill will. A string, since an attacker in a process of its own is told it.
type verdict string

const (
	refused    verdict = "refused"      // frames, if anything, and none says that something was done
	silent     verdict = "silent"       // nothing
	anything   verdict = "anything"     // what a port does for anybody is no wrong answer
	noPage     verdict = "no page"      // HTTP, if anything, and no success
	onlyFrames verdict = "frames alone" // whatever they say
)

// judge tells what is wrong with the bytes that came back on a connection, of which the last frame may be cut.
func (v verdict) judge(answer []byte) error {
	switch v {
	case anything:
		return nil
	case silent:
		if len(answer) > 0 {
			return errors.New("an answer")
		}
		return nil
	case noPage:
		if bytes.Contains(answer, []byte("HTTP/1.1 2")) || len(answer) > 0 && !bytes.HasPrefix(answer, []byte("HTTP/1.")) {
			return errors.New("no refusal")
		}
		return nil
	}
	for len(answer) >= 4 {
		size := int(bigendian.BigEndian.Uint32(answer))
		if size < 4 || size > 16<<20 {
			return fmt.Errorf("an answer of length %d", size)
		}
		if len(answer) < 4+size {
			return nil // cut
		}
		done, err := saysDone(answer[4 : 4+size])
		if err != nil {
			return err
		}
		if done && v == refused {
			return fmt.Errorf("%.300q says it is done", answer[4:4+size])
		}
		answer = answer[4+size:]
	}
	return nil
}

// saysDone tells whether an answer, a frame without its length, says that what was asked has been done: a broker or a name server with the header's code, 0; a node of
// a log with code 200 in header and body, of which a vote says also what it is.
func saysDone(frame []byte) (bool, error) {
	const frameSuccess, nodeAnswers = 0, 200
	if len(frame) < 4 {
		return false, fmt.Errorf("an answer of %d bytes", len(frame))
	}
	kind, size := frame[0], int(bigendian.BigEndian.Uint32(frame)&0xffffff)
	if size > len(frame)-4 {
		return false, fmt.Errorf("an answer of %d bytes has a header of %d", len(frame), size)
	}
	header, body := frame[4:4+size], frame[4+size:]
	code := 0
	switch {
	case kind == 0:
		var h struct{ Code *int }
		if err := json.Unmarshal(header, &h); err != nil || h.Code == nil {
			return false, fmt.Errorf("the answer's header is %.200q", header)
		}
		code = *h.Code
	case kind == 1 && size >= 2:
		code = int(bigendian.BigEndian.Uint16(header))
	default:
		return false, fmt.Errorf("the answer's header is of kind %d", kind)
	}
	if code != nodeAnswers {
		return code == frameSuccess, nil
	}
	var b struct {
		Code       *int
		VoteResult string
	}
	if err := json.Unmarshal(body, &b); err != nil || b.Code == nil {
		return false, fmt.Errorf("the answer's body is %.200q", body)
	}
	return *b.Code == harness.OK && (b.VoteResult == "" || b.VoteResult == "ACCEPT"), nil
}

// exchange sends one request on c and gives the whole answer.
func exchange(c net.Conn, request []byte) ([]byte, error) {
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	b, err := answer(c)
	return append(word(uint32(len(b))), b...), err
}

// The judge of the hostile network must be able to say no: what nodes answer to those who may ask is no refusal, and what they answer to others is one.
func TestRefusalsAreToldFromGrants(t *testing.T) {
	t.Parallel()
	k := ours(t)
	g := group(t, k, k, k)
	g.GoOnly["compat"] = "0.4" // its empty nodes vote
	n := g.Nodes[0]            // no other runs: the test is n1, which it votes for and which leads it
	must(t, n.Start())
	address := fmt.Sprintf("127.0.0.1:%d", n.Port)
	must(t, harness.Until(within(t, limit), "the port", func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}))
	alone := group(t, k)
	leader := started(t, alone)
	member, client := dial(t, address), dial(t, fmt.Sprintf("127.0.0.1:%d", leader.Port))
	fields := func(id, more string) string {
		return `{"code":200,"group":"interop","remoteId":"n0","localId":"` + id + `","leaderId":"` + id + `","term":1000,` + more + `}`
	}
	const end = `"ledgerEndIndex":100,"ledgerEndTerm":4`
	for _, c := range []struct {
		name    string
		conn    net.Conn
		request []byte
		done    bool
	}{
		{"a vote for a stranger", member, frameOf(51001, 1, fields("n9", end)), false},
		{"a vote", member, frameOf(51001, 2, fields("n1", end)), true},
		{"a second vote in the term", member, frameOf(51001, 3, fields("n2", end)), false},
		{"a heartbeat of a stranger", member, frameOf(51002, 4, fields("n9", `"x":0`)), false},
		{"a heartbeat", member, frameOf(51002, 5, fields("n1", `"x":0`)), true},
		{"a push of a stranger", member, frameOf(51004, 6, fields("n9", `"type":"COMMIT","commitIndex":-1`)), false},
		{"a push that does not fit", member, frameOf(51004, 7, fields("n1", `"type":"COMMIT","commitIndex":-1`)), false},
		{"a comparison", member, frameOf(51004, 7, fields("n1", `"type":"COMPARE","commitIndex":-1,"preLogIndex":-1,"preLogTerm":-1`)), true},
		{"a push", member, frameOf(51004, 7, fields("n1", `"type":"APPEND","commitIndex":-1,"count":1,"entries":[{"body":"b25l","bodyCrc":0,"chainCrc":0,"channel":0,"index":0,"magic":1,"pos":0,`+
			`"size":51,"term":1000}],"firstEntryIndex":0,"lastEntryIndex":0,"lastEntryTerm":1000,"preLogIndex":-1,"preLogTerm":-1,"totalSize":51`)), true},
		{"an append to another group", client, frameOf(50001, 8, `{"body":"aGk=","code":200,"group":"nobody","remoteId":"n0","term":-1}`), false},
		{"an append", client, frameOf(50001, 9, `{"body":"aGk=","code":200,"group":"interop","remoteId":"n0","term":-1}`), true},
		{"an append behind others", client, frameOf(50001, 10, `{"body":"aGk=","code":200,"group":"interop","remoteId":"n0","term":-1}`), true},
		{"a request that nobody knows", client, frameOf(49999, 11, `{}`), false},
	} {
		got, err := exchange(c.conn, c.request)
		must(t, err)
		if err := refused.judge(got); (err != nil) != c.done {
			t.Errorf("%s, answered %q: %v", c.name, got, err)
		}
		if silent.judge(got) == nil || anything.judge(got) != nil || onlyFrames.judge(got) != nil || noPage.judge(got) == nil {
			t.Errorf("%s is judged wrongly by others", c.name)
		}
	}
	for _, c := range []struct {
		text string
		done bool
	}{
		{frameText(`{"code":0,"flag":1,"opaque":7}`, ""), true}, // of a broker
		{frameText(`{"code":0,"flag":1,"opaque":7}`, "x") + frameText(`{"code":2}`, ""), true},
		{frameText(`{"code":2}`, "") + frameText(`{"code":0,"flag":1}`, ""), true},
		{frameText(`{"code":17,"flag":1,"remark":"no \"code\":0,"}`, ""), false},
		{"HTTP/1.1 400 Bad Request\r\n", true}, // no frame
		{"", false},
		{frameText(`{"code":0}`, "")[:10], false}, // cut
	} {
		if err := refused.judge([]byte(c.text)); (err != nil) != c.done {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	if noPage.judge([]byte("HTTP/1.1 200 OK\r\n\r\n")) == nil || noPage.judge([]byte("HTTP/1.1 400 Bad Request\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")) == nil ||
		noPage.judge([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) != nil {
		t.Error("pages are judged wrongly")
	}
	must(t, alone.Stop())
	must(t, n.Stop())
}

func frameText(header, body string) string { return string(join(header, body)) }
