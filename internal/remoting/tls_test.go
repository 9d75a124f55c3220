package remoting

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dledger/security"
)

func newTestTLS(t *testing.T, keys ...string) *TLS {
	t.Helper()
	s := security.Default()
	for _, kv := range keys {
		key, value, _ := strings.Cut(kv, "=")
		if known, err := s.Set(key, value); !known || err != nil {
			t.Fatalf("%s: known %v, %v", kv, known, err)
		}
	}
	secure, err := NewTLS(s, func(err error) { t.Log(err) })
	if err != nil {
		t.Fatal(err)
	}
	return secure
}

func mirror(c *Conn, req *Frame) { _ = c.Reply(req.Ref(), Answer{Code: 0}, req.Body) }

// ask sends a body and compares what comes back.
func ask(t *testing.T, cl *Client, address string, body []byte) error {
	t.Helper()
	f, err := cl.Call(t.Context(), address, Request{Code: 7}, 5*time.Second, body)
	if err == nil && !bytes.Equal(f.Body, body) {
		t.Errorf("got %d bytes back, want the %d sent", len(f.Body), len(body))
	}
	return err
}

// One port serves what the mode allows, and closes the rest.
func TestModesOfTLS(t *testing.T) {
	for _, test := range []struct {
		mode          string
		plain, secure bool
	}{{security.Disabled, true, false}, {security.Permissive, true, true}, {security.Enforcing, false, true}} {
		t.Run(string(test.mode), func(t *testing.T) {
			setup := newTestTLS(t, "tls.server.mode="+string(test.mode))
			_, address := serve(t, ServerConfig{Handler: HandlerFunc(mirror), TLS: setup})
			for _, c := range []struct {
				name string
				want bool
				cfg  ClientConfig
			}{{"plain", test.plain, ClientConfig{}}, {"secure", test.secure, ClientConfig{Dial: setup.Dial}}} {
				cl := NewClient(c.cfg)
				for _, size := range []int{0, 10, 5000, 3 << 20} {
					if err := ask(t, cl, address, bytes.Repeat([]byte("x"), size)); (err == nil) != c.want {
						t.Errorf("%s, %d bytes: %v, want it served: %v", c.name, size, err, c.want)
					}
				}
				if err := cl.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// issue puts a fresh certificate and its key into two files.
func issue(t *testing.T, cert, key string) []byte {
	t.Helper()
	c, err := selfSigned()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c.Certificate[0]
}

// Certificates that change on disk are shown from the next connection on; files that are broken for a while change nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first := issue(t, cert, key)
	setup := newTestTLS(t, "tls.test.mode.enable=false", "tls.server.certPath="+cert, "tls.server.keyPath="+key)
	_, address := serve(t, ServerConfig{Handler: HandlerFunc(mirror), TLS: setup})
	shown := func() []byte {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Raw
	}
	if !bytes.Equal(shown(), first) {
		t.Error("another certificate than the file's")
	}
	if err := os.WriteFile(cert, []byte("half of a certif"), 0o600); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(cert, later, later); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(shown(), first) {
		t.Error("a broken file changed the certificate")
	}
	second := issue(t, cert, key)
	if !bytes.Equal(shown(), second) {
		t.Error("the new certificate is not shown")
	}
}

// A server that wants certificates of clients serves those that its trust file vouches for; a client that checks servers talks to no other.
func TestBothSidesMayAskForCertificates(t *testing.T) {
	dir := t.TempDir()
	name := func(s string) string { return filepath.Join(dir, s) }
	issue(t, name("cert"), name("key"))
	issue(t, name("client-cert"), name("client-key"))
	issue(t, name("stranger-cert"), name("stranger-key"))
	setup := newTestTLS(t, "tls.test.mode.enable=false", "tls.server.mode=enforcing", "tls.server.certPath="+name("cert"), "tls.server.keyPath="+name("key"),
		"tls.server.authClient=true", "tls.server.need.client.auth=require", "tls.server.trustCertPath="+name("client-cert"))
	_, address := serve(t, ServerConfig{Handler: HandlerFunc(mirror), TLS: setup})
	for _, test := range []struct {
		name string
		keys []string
		want bool
	}{
		{"trusted", []string{"tls.client.certPath=" + name("client-cert"), "tls.client.keyPath=" + name("client-key"), "tls.client.authServer=true",
			"tls.client.trustCertPath=" + name("cert")}, true},
		{"no certificate", nil, false},
		{"a stranger", []string{"tls.client.certPath=" + name("stranger-cert"), "tls.client.keyPath=" + name("stranger-key")}, false},
		{"distrusts the server", []string{"tls.client.certPath=" + name("client-cert"), "tls.client.keyPath=" + name("client-key"), "tls.client.authServer=true",
			"tls.client.trustCertPath=" + name("stranger-cert")}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			side := newTestTLS(t, append([]string{"tls.server.mode=disabled", "tls.test.mode.enable=false", "tls.enable=true"}, test.keys...)...)
			cl := NewClient(ClientConfig{Dial: side.Dial})
			defer cl.Close()
			if err := ask(t, cl, address, []byte("hello")); (err == nil) != test.want {
				t.Errorf("%v, want it served: %v", err, test.want)
			}
		})
	}
}

func TestBadTLSSettingsAreNamed(t *testing.T) {
	for _, test := range []struct{ keys, want string }{
		{"tls.server.mode=sometimes", "sometimes"},
		{"tls.enable=yes", "yes"},
		{"tls.server.need.client.auth=maybe", "maybe"},
		{"tls.server.keyPassword=secret", "tls.server.keyPassword"},
		{"tls.test.mode.enable=false", "tls.server.certPath"},
		{"tls.server.certPath=/nowhere/cert tls.server.keyPath=/nowhere/key", "/nowhere/"},
	} {
		s := security.Default()
		var err error
		for kv := range strings.FieldsSeq(test.keys) {
			key, value, _ := strings.Cut(kv, "=")
			if _, bad := s.Set(key, value); bad != nil {
				err = bad
			}
		}
		if err == nil {
			_, err = NewTLS(s, nil)
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.keys, err, test.want)
		}
	}
	s := security.Default()
	if known, err := s.Set("brokerName", "a"); known || err != nil {
		t.Errorf("a key of others: known %v, %v", known, err)
	}
}

// A client that begins a handshake and goes silent is let go, and holds up nobody.
func TestHalfHandshakeHoldsNobodyUp(t *testing.T) {
	setup := newTestTLS(t)
	_, address := serve(t, ServerConfig{Handler: HandlerFunc(mirror), TLS: setup})
	slow, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Write([]byte{tlsHandshake, 3}); err != nil {
		t.Fatal(err)
	}
	cl := NewClient(ClientConfig{Dial: setup.Dial})
	defer cl.Close()
	if err := ask(t, cl, address, []byte("hello")); err != nil {
		t.Error(err)
	}
}

// TestTLSSettingsOfAProgram need not name what has a default, and are refused where they name what there is none of.
func TestTLSSettingsOfAProgram(t *testing.T) {
	got, err := NewTLS(security.TLS{TestMode: true, Client: true}, nil)
	if err != nil || got.Mode() != security.Permissive || !got.ForClient() {
		t.Errorf("got %+v, %v", got, err)
	}
	for want, s := range map[string]security.TLS{"tls.server.mode": {TestMode: true, Mode: "on"}, "tls.server.need.client.auth": {TestMode: true, ServerNeedAuth: "yes"}} {
		if _, err := NewTLS(s, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error that names %s", s, err, want)
		}
	}
}
