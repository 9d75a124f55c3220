package cluster

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"dledger/interop/harness"
)

// Left and Right are the names, in Cluster.Ports, of the clients of either side: those that know the name servers as Cluster.Sides[0] and Sides[1] say. The brokers have
// there the names that they have in Network, and name servers those that Name gives.
const (
	Left  = "left"
	Right = "right"
)

// Name is what a name server is called in Cluster.Ports.
func Name(i int) string {
	if i == 0 {
		return "names"
	}
	return fmt.Sprintf("names%d", i)
}

// apart puts Ports between brokers, name servers, and the clients of two sides. It gives the name servers as each broker is to know them, and the address that each is to tell.
//
// All listen at 127.0.0.1, and each party knows the others at an address of its own, at the same port:
//
//	127.0.1.1 ...  as the brokers know the name servers
//	127.0.9.1      as brokers tell where they are, and as other brokers know them: who has connected, harness.Owns says
//	127.0.4.1      as the clients of the left side know brokers and name servers
//	127.0.5.1      as those of the right side do
//
// Clients are told of brokers by name servers: in their answers the third of these becomes the fourth or fifth.
func (c *Cluster) apart(names, brokers []string) (known, told []string, err error) {
	c.Ports = harness.OpenNetwork()
	for range brokers {
		c.pids = append(c.pids, new(atomic.Int64))
	}
	const all = "127.0.9.1"
	from := func(ip, addr string) string { return ip + addr[strings.IndexByte(addr, ':'):] }
	pass := func(k harness.Link) {
		if err == nil {
			err = c.Ports.Pass(k)
		}
	}
	for i, addr := range brokers {
		told = append(told, from(all, addr))
		c.behind[told[i]] = addr
		pass(harness.Link{To: fmt.Sprintf("n%d", i), At: told[i], Target: addr, Who: c.who})
	}
	for i := range brokers {
		var list []string
		for j, addr := range names {
			at := from(fmt.Sprintf("127.0.%d.1", 1+i), addr)
			list = append(list, at)
			pass(harness.Link{From: fmt.Sprintf("n%d", i), To: Name(j), At: at, Target: addr})
		}
		known = append(known, strings.Join(list, ";"))
	}
	c.Sides = nil
	for i, side := range []string{Left, Right} {
		ip := fmt.Sprintf("127.0.%d.1", 4+i) // as long as all
		for j, addr := range brokers {
			pass(harness.Link{From: side, To: fmt.Sprintf("n%d", j), At: from(ip, addr), Target: addr})
		}
		var list []string
		for j, addr := range names {
			list = append(list, from(ip, addr))
			pass(harness.Link{From: side, To: Name(j), At: list[j], Target: addr, Answer: func(frame []byte) []byte {
				return bytes.ReplaceAll(frame, []byte(all+":"), []byte(ip+":"))
			}})
		}
		c.Sides = append(c.Sides, strings.Join(list, ";"))
	}
	return known, told, err
}

// who says which broker has connected to another one.
func (c *Cluster) who(conn net.Conn) string {
	for i, pid := range c.pids {
		if pid := int(pid.Load()); pid != 0 && harness.Owns(pid, conn) {
			return fmt.Sprintf("n%d", i)
		}
	}
	return ""
}
