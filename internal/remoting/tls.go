package remoting

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"time"

	"dledger/security"
)

// UncheckedWarning is what programs say of such keys.
const UncheckedWarning = "certificates of clients and servers are not checked: set tls.test.mode.enable=false"

// TLS is settings at work. Files that change are read again at the next handshake; one that cannot be read then leaves what was read before in force.
type TLS struct {
	set security.TLS
	log func(err error) // of files that changed and cannot be read

	mu     sync.Mutex
	server *tls.Config
	client *tls.Config
	seen   map[string]time.Time // modification times of the files when they were read
}

// NewTLS reads the files that s names; settings without anything are the default ones, and so are mode and need of authentication where they are not given. Errors name the file. failed, if not nil, hears of files that cannot be read again later.
func NewTLS(s security.TLS, failed func(error)) (*TLS, error) {
	if failed == nil {
		failed = func(error) {}
	}
	if s == (security.TLS{}) {
		s = security.Default()
	}
	s.Mode, s.ServerNeedAuth = cmp.Or(s.Mode, security.Permissive), cmp.Or(s.ServerNeedAuth, "none")
	for key, value := range map[string]string{"tls.server.mode": s.Mode, "tls.server.need.client.auth": s.ServerNeedAuth} {
		if _, err := s.Set(key, value); err != nil {
			return nil, err
		}
	}
	t := &TLS{set: s, log: failed}
	if err := t.load(); err != nil {
		return nil, err
	}
	return t, nil
}

// Mode is the server's.
func (t *TLS) Mode() string { return t.set.Mode }

// ForClient tells whether connections that this process opens use TLS: because the settings say so, or because its own kind takes no others.
func (t *TLS) ForClient() bool { return t.set.Client || t.set.Mode == security.Enforcing }

func (t *TLS) files() []string {
	var all []string
	for _, f := range []string{t.set.ServerKey, t.set.ServerCert, t.set.ServerTrust, t.set.ClientKey, t.set.ClientCert, t.set.ClientTrust} {
		if f != "" {
			all = append(all, f)
		}
	}
	return all
}

// load builds both configurations; with an error nothing has changed.
func (t *TLS) load() error {
	seen := map[string]time.Time{}
	for _, f := range t.files() {
		info, err := os.Stat(f)
		if err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		seen[f] = info.ModTime()
	}
	server := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case t.set.ServerCert != "" && t.set.ServerKey != "":
		cert, err := tls.LoadX509KeyPair(t.set.ServerCert, t.set.ServerKey)
		if err != nil {
			return fmt.Errorf("TLS: certificate %s with key %s: %w", t.set.ServerCert, t.set.ServerKey, err)
		}
		server.Certificates = []tls.Certificate{cert}
	case t.set.TestMode:
		if t.server != nil {
			server.Certificates = t.server.Certificates // the one made before
			break
		}
		cert, err := selfSigned()
		if err != nil {
			return fmt.Errorf("TLS: make a certificate: %w", err)
		}
		server.Certificates = []tls.Certificate{cert}
	case t.set.Mode != security.Disabled:
		return fmt.Errorf("TLS: mode %s without tls.test.mode.enable needs tls.server.certPath and tls.server.keyPath", t.set.Mode)
	}
	verify := t.set.ServerAuthClient && t.set.ServerTrust != ""
	switch {
	case t.set.TestMode || t.set.ServerNeedAuth == "none" && !verify:
	case verify && t.set.ServerNeedAuth != "optional":
		server.ClientAuth = tls.RequireAndVerifyClientCert
	case verify:
		server.ClientAuth = tls.VerifyClientCertIfGiven
	case t.set.ServerNeedAuth == "require":
		server.ClientAuth = tls.RequireAnyClientCert
	default:
		server.ClientAuth = tls.RequestClientCert
	}
	var err error
	if server.ClientCAs, err = pool(t.set.ServerTrust); err != nil {
		return err
	}
	// The original checks the chain and not the name: addresses of brokers are numbers.
	client := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	if t.set.ClientAuthServer && !t.set.TestMode {
		roots, err := pool(t.set.ClientTrust)
		if err != nil {
			return err
		}
		client.VerifyConnection = chainOf(roots)
	}
	if t.set.ClientCert != "" && t.set.ClientKey != "" {
		cert, err := tls.LoadX509KeyPair(t.set.ClientCert, t.set.ClientKey)
		if err != nil {
			return fmt.Errorf("TLS: certificate %s with key %s: %w", t.set.ClientCert, t.set.ClientKey, err)
		}
		client.Certificates = []tls.Certificate{cert}
	}
	t.server, t.client, t.seen = server, client, seen
	return nil
}

// pool reads the certificates of a file; nil, which means the system's, for none.
func pool(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("TLS: %w", err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("TLS: %s holds no certificate", file)
	}
	return p, nil
}

// chainOf accepts servers whose certificate leads to roots, whatever their name.
func chainOf(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
		return err
	}
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "dledger test certificate"}, NotBefore: time.Now().Add(-24 * time.Hour),
		NotAfter: time.Now().AddDate(10, 0, 0), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// current gives both configurations, read again if a file has changed.
func (t *TLS) current() (server, client *tls.Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, at := range t.seen {
		info, err := os.Stat(f)
		if err == nil && info.ModTime().Equal(at) {
			continue
		}
		if err == nil {
			err = t.load()
		}
		if err != nil {
			t.log(err)
		}
		break
	}
	return t.server, t.client
}

// Dial opens a TLS connection to address.
func (t *TLS) Dial(ctx context.Context, address string) (net.Conn, error) {
	_, cfg := t.current()
	return (&tls.Dialer{NetDialer: &net.Dialer{}, Config: cfg}).DialContext(ctx, "tcp", address)
}

const (
	tlsHandshake = 0x16 // the first byte of a TLS connection; a frame begins with 0, being smaller than 16 MiB
	tlsLimit     = 10 * time.Second
)

// errPlain and errSecure close connections of the kind that the mode excludes.
var (
	errPlain  = errors.New("plain connection, and TLS is enforced")
	errSecure = errors.New("TLS connection, and TLS is disabled")
)

// secure looks at the first bytes that have arrived, n of them, and makes a TLS connection of one that begins like that.
func (c *Conn) secure() error {
	first := c.in.chunk[c.in.r:c.in.w]
	t := c.opt.tls
	switch isTLS := first[0] == tlsHandshake; {
	case !isTLS && t.Mode() == security.Enforcing:
		return errPlain
	case !isTLS:
		return nil
	case t.Mode() == security.Disabled:
		return errSecure
	}
	server, _ := t.current()
	s := tls.Server(&unread{Conn: c.nc, first: first}, server)
	c.in = reader{}
	ctx, cancel := context.WithTimeout(context.Background(), tlsLimit)
	defer cancel()
	if err := s.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = s
	return nil
}

// unread is a connection whose first bytes have been read already.
type unread struct {
	net.Conn
	first []byte
}

func (u *unread) Read(b []byte) (int, error) {
	if len(u.first) > 0 {
		n := copy(b, u.first)
		u.first = u.first[n:]
		return n, nil
	}
	return u.Conn.Read(b)
}

// whole writes pieces to a TLS connection as one: each piece would be a record of its own.
func whole(w io.Writer, pieces net.Buffers, buf []byte) ([]byte, error) {
	buf = buf[:0]
	for _, p := range pieces {
		buf = append(buf, p...)
	}
	_, err := w.Write(buf)
	if cap(buf) > 1<<20 {
		buf = nil // a large answer's memory is not kept
	}
	return buf, err
}
