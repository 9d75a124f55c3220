// Package security has the settings of TLS connections as programs give them to brokers and name servers, and reads them from the original's keys. It opens no file and no
// connection: that is the business of whoever serves. Start at TLS.
package security

import (
	"fmt"
	"strings"
)

// What a server does with connections that begin with a TLS handshake, and with those that do not (TlsMode in the Java original).
const (
	Disabled   = "disabled"   // TLS connections are closed
	Permissive = "permissive" // both are served
	Enforcing  = "enforcing"  // plain connections are closed
)

// TLS are the settings of TLS connections, the original's tls.* keys (TlsSystemConfig in the Java original; docs/operating.md, "TLS"). Paths name PEM files, which are read again when
// they change. The zero value is the default: plain connections are served and TLS ones with a certificate of the server's own making; this process opens plain ones. A name
// server opens none, so the fields of clients say nothing there.
type TLS struct {
	Mode     string // tls.server.mode: "disabled", TLS connections are closed; "permissive", both are served, the default; "enforcing", plain ones are closed
	TestMode bool   // tls.test.mode.enable: a server without a certificate makes itself one, a client trusts any
	Client   bool   // tls.enable: connections that this process opens use TLS

	ServerKey, ServerCert, ServerTrust string // tls.server.keyPath, .certPath, .trustCertPath
	ServerAuthClient                   bool   // tls.server.authClient: clients must show a certificate that ServerTrust vouches for
	ServerNeedAuth                     string // tls.server.need.client.auth: "none", the default, "optional" or "require"
	ClientKey, ClientCert, ClientTrust string // tls.client.keyPath, .certPath, .trustCertPath
	ClientAuthServer                   bool   // tls.client.authServer: servers must show a certificate that ClientTrust vouches for
}

// Default are the settings without any key: as the original, a server takes both kinds of connections, with a certificate of its own making.
func Default() TLS {
	return TLS{Mode: Permissive, TestMode: true, ServerNeedAuth: "none"}
}

// Set sets one key of the original's. known is false for keys that are none of TLS.
func (s *TLS) Set(key, value string) (known bool, err error) {
	flag := func(to *bool) error {
		switch strings.ToLower(value) {
		case "true":
			*to = true
		case "false":
			*to = false
		default:
			return fmt.Errorf("%s: %q is neither true nor false", key, value)
		}
		return nil
	}
	switch key {
	case "tls.enable":
		return true, flag(&s.Client)
	case "tls.test.mode.enable":
		return true, flag(&s.TestMode)
	case "tls.server.mode":
		switch m := strings.ToLower(value); m {
		case Disabled, Permissive, Enforcing:
			s.Mode = m
			return true, nil
		}
		return true, fmt.Errorf("%s: %q is not disabled, permissive or enforcing", key, value)
	case "tls.server.need.client.auth":
		switch v := strings.ToLower(value); v {
		case "none", "optional", "require":
			s.ServerNeedAuth = v
			return true, nil
		}
		return true, fmt.Errorf("%s: %q is not none, optional or require", key, value)
	case "tls.server.authClient":
		return true, flag(&s.ServerAuthClient)
	case "tls.client.authServer":
		return true, flag(&s.ClientAuthServer)
	case "tls.server.keyPath":
		s.ServerKey = value
	case "tls.server.certPath":
		s.ServerCert = value
	case "tls.server.trustCertPath":
		s.ServerTrust = value
	case "tls.client.keyPath":
		s.ClientKey = value
	case "tls.client.certPath":
		s.ClientCert = value
	case "tls.client.trustCertPath":
		s.ClientTrust = value
	case "tls.server.keyPassword", "tls.client.keyPassword":
		if value != "" {
			return true, fmt.Errorf("%s: keys with a password are not read; take it off with openssl pkey", key)
		}
	default:
		return false, nil
	}
	return true, nil
}

// Unheeded gives the keys that ask for certificates to be checked, where test mode, which is the default, checks none. There are none without it.
func (s *TLS) Unheeded() []string {
	if !s.TestMode {
		return nil
	}
	var keys []string
	for _, k := range []struct {
		key string
		set bool
	}{
		{"tls.server.authClient", s.ServerAuthClient}, {"tls.server.need.client.auth", s.ServerNeedAuth != "" && s.ServerNeedAuth != "none"}, {"tls.server.trustCertPath", s.ServerTrust != ""},
		{"tls.client.authServer", s.ClientAuthServer}, {"tls.client.trustCertPath", s.ClientTrust != ""},
	} {
		if k.set {
			keys = append(keys, k.key)
		}
	}
	return keys
}
