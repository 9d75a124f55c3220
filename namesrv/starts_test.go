package namesrv

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"dledger/internal/leak"
	"dledger/internal/mq"
	"dledger/internal/remoting"
)

// A hundred times a name server is started on a real port, used by a broker and clients that stay connected, and closed; or finds its port taken, or a file that
// cannot be read. Goroutines, descriptors and files are then no more than they were after the first time.
func TestStartsAndStopsLeaveNothingBehind(t *testing.T) {
	dir := t.TempDir()
	torn := filepath.Join(dir, "torn.json")
	if err := os.WriteFile(torn, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	served := func(i int) {
		s, err := Listen(Config{Address: "127.0.0.1:0", KVFile: filepath.Join(dir, "kv.json")})
		if err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		call := func(c *remoting.Client, code int32, ext map[string]string, body []byte) {
			t.Helper()
			f, err := c.Call(t.Context(), s.Addr().String(), remoting.Request{Code: code, Ext: ext}, time.Minute, body)
			if err != nil || f.Code != mq.Success {
				t.Fatalf("time %d: request %d: %+v, %v", i, code, f, err)
			}
		}
		broker, client := remoting.NewClient(remoting.ClientConfig{Version: mq.Version}), remoting.NewClient(remoting.ClientConfig{Version: 409})
		r := reg{broker: "b", addr: "10.0.0.1:10911"}
		body := mq.Marshal(r.body())
		call(broker, mq.CodeRegisterBroker, r.ext(body), body)
		call(client, mq.CodeRoute, map[string]string{"topic": "T"}, nil)
		call(client, mq.CodePutKV, map[string]string{"namespace": "n", "key": "k", "value": "v"}, nil)
		silent, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Listen(Config{Address: s.Addr().String(), KVFile: filepath.Join(dir, "other.json")}); err == nil {
			t.Fatalf("start %d: a port is served by two", i)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("stop %d: %v", i, err)
		}
		for _, c := range []interface{ Close() error }{broker, client, silent} {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	leak.Check(t, dir, 2, func(i int) {
		if i%2 == 0 {
			served(i)
		} else if s, err := Listen(Config{Address: "127.0.0.1:0", KVFile: torn}); err == nil {
			t.Fatalf("start %d with a torn file: %v", i, s.Close())
		}
	})
}
