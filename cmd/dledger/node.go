package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"dledger"
	"dledger/broker"
	"dledger/client"
	"dledger/internal/mq"
	"dledger/internal/remoting"
	"dledger/namesrv"
)

// What a node of `up` runs beside its member of the log group: a name server, and a replica of each broker group. All logs share the node's port.

// Sizes of the brokers' files on a machine where somebody tries things: every replica makes its files at the start.
const (
	upDataFile  = 128 << 20
	upIndexFile = 8 << 20
)

// groups are the broker groups: as many as nodes, so that each can lead one.
func (u *groupUp) groups() []string {
	return []string{"broker-a", "broker-b", "broker-c"}[:u.nodes]
}

func (u *groupUp) brokerAddress(node, group int) string {
	return net.JoinHostPort(loopback, strconv.Itoa(u.brokerPort(node, group)))
}

func (u *groupUp) brokerDir(name, id string) string { return filepath.Join(u.dir, name+"-"+id) }

// nameServers gives the addresses of all name servers, joined by ';'.
func (u *groupUp) nameServers() string {
	var all []string
	for i := range u.ids {
		all = append(all, net.JoinHostPort(loopback, strconv.Itoa(u.namesPort(i))))
	}
	return strings.Join(all, ";")
}

// beside opens a node's name server and brokers; the result stops them, in the way that the end of ctx asks for. ended is called when one of the brokers has stopped,
// be it by itself: stop then says why.
func (u *groupUp) beside(ctx context.Context, ended func(), node int, server *dledger.Server, log *slog.Logger) (stop func() error, err error) {
	id := u.ids[node]
	names, err := namesrv.Listen(namesrv.Config{Address: net.JoinHostPort(loopback, strconv.Itoa(u.namesPort(node))), KVFile: filepath.Join(u.dir, "namesrv-"+id, "kvConfig.json"), Logger: log})
	if err != nil {
		return nil, err
	}
	brokers := make([]*broker.Broker, len(u.groups()))
	failed := make([]error, len(brokers))
	var opening sync.WaitGroup
	for g := range brokers {
		opening.Go(func() { brokers[g], failed[g] = u.openBroker(node, g, server, log) })
	}
	opening.Wait()
	brokers = slices.DeleteFunc(brokers, func(b *broker.Broker) bool { return b == nil })
	stop = func() error { return errors.Join(stopBrokers(ctx, brokers), names.Close()) }
	if err := errors.Join(failed...); err != nil {
		return nil, errors.Join(err, stop())
	}
	for _, b := range brokers {
		go func() { // until stop
			<-b.Done()
			ended()
		}()
	}
	return stop, nil
}

func (u *groupUp) openBroker(node, group int, server *dledger.Server, log *slog.Logger) (*broker.Broker, error) {
	name, id := u.groups()[group], u.ids[node]
	cfg := broker.NewConfig()
	cfg.Name, cfg.IP, cfg.Bind, cfg.Port, cfg.NameServers = name, loopback, loopback, u.brokerPort(node, group), strings.Split(u.nameServers(), ";")
	cfg.Log = dledger.Config{Group: name, ID: id, Peers: client.FormatPeers(u.peers), Dir: u.brokerDir(name, id),
		DataFileSize: upDataFile, IndexFileSize: upIndexFile, PreferredIDs: []string{u.ids[group]}, Server: server}
	if err := set(&cfg.Log, u.set, log); err != nil {
		return nil, err
	}
	cfg.Logger = log
	b, err := broker.Open(cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// awaitBrokers waits until the first name server knows a leader of each broker group, or ctx ends.
func (u *groupUp) awaitBrokers(ctx context.Context) {
	c := remoting.NewClient(remoting.ClientConfig{Version: mq.Version, PauseMin: 10 * time.Millisecond, PauseMax: 50 * time.Millisecond})
	defer c.Close()
	first, _, _ := strings.Cut(u.nameServers(), ";")
	for ctx.Err() == nil {
		var info mq.ClusterInfo
		f, err := c.Call(ctx, first, remoting.Request{Code: mq.CodeClusterInfo}, time.Second)
		if err == nil && mq.Unmarshal(f.Body, &info) == nil &&
			!slices.ContainsFunc(u.groups(), func(name string) bool { return info.Brokers[name].BrokerAddrs[0] == "" }) {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
