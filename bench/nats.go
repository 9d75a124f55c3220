package main

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// natsNode is one NATS server with JetStream, in a cluster with routes between all three.
func natsNode(id int, routes, addrs []string, dir string, syncAlways bool) error {
	o := &server.Options{
		ServerName: fmt.Sprintf("s%d", id), Host: "127.0.0.1", Port: port(addrs[id]),
		JetStream: true, StoreDir: mkdir(dir, "js"), SyncAlways: syncAlways, DisableJetStreamBanner: true,
		Cluster: server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: port(routes[id])},
		LogFile: dir + "/nats.log",
	}
	for _, r := range routes {
		u, err := url.Parse("nats-route://" + r)
		if err != nil {
			return err
		}
		o.Routes = append(o.Routes, u)
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return nil
}

func port(addr string) int {
	_, p, err := net.SplitHostPort(addr)
	if err != nil {
		fatal(err)
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		fatal(err)
	}
	return n
}
