package harness

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
)

// Owns tells whether a process holds the other end of an IPv4 connection on this machine.
func Owns(pid int, c net.Conn) bool {
	here, ok := c.LocalAddr().(*net.TCPAddr)
	there, is := c.RemoteAddr().(*net.TCPAddr)
	if !ok || !is || here.IP.To4() == nil || there.IP.To4() == nil {
		return false
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false
	}
	row := fmt.Appendf(nil, " %s %s ", kernelForm(there), kernelForm(here))
	_, rest, found := bytes.Cut(table, row)
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	const inode = 6 // behind the addresses: state, queues, timer, retransmissions, user, time-outs, inode
	fields := bytes.Fields(line)
	if !found || len(fields) <= inode {
		return false
	}
	socket := fmt.Sprintf("socket:[%s]", fields[inode])
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	open, err := os.ReadDir(dir)
	if err != nil {
		return false // it has ended
	}
	for _, f := range open {
		if to, err := os.Readlink(dir + f.Name()); err == nil && to == socket { // else it has been closed
			return true
		}
	}
	return false
}

// kernelForm is an address as it stands in /proc/net/tcp: a number in the machine's order, and the port.
func kernelForm(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
}
