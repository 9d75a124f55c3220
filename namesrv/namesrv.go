// Package namesrv is a RocketMQ name server: it knows which brokers live, what topics they have, and tells clients where to go. Routes
// are kept in memory only, since every broker registers again and again with every name server; the key-value configuration is kept in
// a file. It never talks to another name server and starts no conversation with a broker. Start at Listen for the server, at routes
// for what it knows.
package namesrv

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/internal/vfs"
)

// Server is a running name server (NamesrvController in the Java original).
//
// Its goroutines are those of its connections, one that accepts, and expire, which drops brokers that have gone silent. Close ends all, and nothing else
// does: whatever fails in between is answered, or tried again.
type Server struct {
	log     *slog.Logger
	net     *remoting.Server
	addr    net.Addr
	started time.Time
	routes  *routes
	kv      *kvConfig
	config  atomic.Pointer[Config] // replaced as a whole when a request changes a key
	setting sync.Mutex             // held while it is replaced

	stop    chan struct{}
	closed  sync.Once
	running sync.WaitGroup
}

// Listen starts a name server. It answers when Listen returns.
func Listen(cfg Config) (*Server, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if keys := cfg.TLS.Unheeded(); len(keys) > 0 {
		cfg.Logger.Warn(remoting.UncheckedWarning, "keys", keys)
	}
	kv, err := openKV(vfs.OS(), cfg.KVFile)
	if err != nil {
		return nil, err
	}
	secure, err := remoting.NewTLS(cfg.TLS, func(err error) {
		cfg.Logger.Warn("certificates cannot be read again, the old ones stay in force", "error", err)
	})
	if err != nil {
		return nil, err
	}
	l := cfg.Listener
	if l == nil {
		if l, err = net.Listen("tcp", cfg.Address); err != nil {
			return nil, fmt.Errorf("name server: %w", err)
		}
	}
	s := &Server{log: cfg.Logger, addr: l.Addr(), started: time.Now(), kv: kv, stop: make(chan struct{})}
	s.config.Store(&cfg)
	s.routes = newRoutes(cfg.Logger)
	s.net = remoting.NewServer(remoting.ServerConfig{
		Handler: remoting.HandlerFunc(s.handle),
		TLS:     secure,
		Version: mq.Version,
		Closed: func(c *remoting.Conn, cause error) {
			s.routes.dropConn(c, "its connection has ended: "+cause.Error())
		},
		AcceptError: func(err error) { s.log.Warn("cannot accept connections for now", "error", err) },
	})
	s.running.Go(func() { _ = s.net.Serve(l) }) // ends with net.ErrClosed, at Close; what else fails is told to AcceptError and tried again
	s.running.Go(s.expire)
	return s, nil
}

// Addr is the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.addr }

// Close ends the server and waits for its goroutines. Brokers and clients go to another name server.
func (s *Server) Close() error {
	s.closed.Do(func() { close(s.stop) })
	err := s.net.Close()
	s.running.Wait()
	return err
}

// expire drops the brokers that have not been heard of for the time they promised.
func (s *Server) expire() {
	tick := time.NewTicker(s.config.Load().ScanInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			for _, c := range s.routes.expire(now) {
				c.Close() //nolint:errcheck // always nil; the end of the connection is reported by Closed
			}
		}
	}
}

// refusal is an answer that is no success; everything else that goes wrong is answered with mq.SystemError.
type refusal struct {
	code int32
	text string
}

func (r *refusal) Error() string { return r.text }

func refuse(code int32, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// request is what a handler is given.
type request struct {
	*mq.Fields
	conn    *remoting.Conn
	version int32
	body    []byte
}

// reply is what a handler gives.
type reply struct {
	ext  map[string]string
	body []byte
}

// handlers has one method for each request that a name server is asked. Whoever asks for another gets mq.NotSupported.
var handlers = map[int32]func(*Server, *request) (reply, error){
	mq.CodeRoute:               (*Server).route,
	mq.CodeRegisterBroker:      (*Server).registerBroker,
	mq.CodeUnregisterBroker:    (*Server).unregisterBroker,
	mq.CodeQueryDataVersion:    (*Server).queryDataVersion,
	mq.CodeBrokerHeartbeat:     (*Server).brokerHeartbeat,
	mq.CodeBrokerMembers:       (*Server).brokerMembers,
	mq.CodeClusterInfo:         (*Server).clusterInfo,
	mq.CodeAllTopics:           (*Server).allTopics,
	mq.CodeTopicsByCluster:     (*Server).topicsByCluster,
	mq.CodeSystemTopics:        (*Server).systemTopics,
	mq.CodeUnitTopics:          (*Server).unitTopics,
	mq.CodeUnitSubTopics:       (*Server).unitSubTopics,
	mq.CodeUnitSubOnlyTopics:   (*Server).unitSubOnlyTopics,
	mq.CodeWipeWritePerm:       (*Server).wipeWritePerm,
	mq.CodeAddWritePerm:        (*Server).addWritePerm,
	mq.CodeDeleteTopicRoute:    (*Server).deleteTopic,
	mq.CodeRegisterTopicRoute:  (*Server).registerTopic,
	mq.CodePutKV:               (*Server).putKV,
	mq.CodeGetKV:               (*Server).getKV,
	mq.CodeDeleteKV:            (*Server).deleteKV,
	mq.CodeListKV:              (*Server).listKV,
	mq.CodeUpdateNamesrvConfig: (*Server).updateConfig,
	mq.CodeGetNamesrvConfig:    (*Server).getConfig,
}

// handle answers one request. Everything is in memory but for changes of the key-value configuration, so it is done here, on the
// connection's read goroutine.
func (s *Server) handle(c *remoting.Conn, req *remoting.Frame) {
	h, ok := handlers[req.Code]
	if !ok {
		if err := c.ReplyUnsupported(req); err != nil {
			s.log.Debug("no answer", "to", c.RemoteAddr(), "error", err)
		}
		return
	}
	if req.Code != mq.CodeRoute {
		c.Vain(req.Ref()) // brokers and tools send one now and then
	}
	r, err := h(s, &request{Fields: mq.FieldsOf(req.Ext), conn: c, version: req.Version, body: req.Body})
	answer := remoting.Answer{Code: mq.Success, Ext: r.ext}
	if err != nil {
		answer = remoting.Answer{Code: mq.SystemError, Remark: err.Error()}
		if refused := (*refusal)(nil); errors.As(err, &refused) {
			answer.Code = refused.code
		}
		r.body = nil
	}
	err = c.Reply(req.Ref(), answer, r.body)
	if errors.Is(err, remoting.ErrTooLarge) {
		err = c.Reply(req.Ref(), remoting.Answer{Code: mq.SystemError, Remark: "the answer is larger than a frame may be"})
	}
	if err != nil {
		s.log.Debug("no answer", "to", c.RemoteAddr(), "code", req.Code, "error", err)
	}
}
