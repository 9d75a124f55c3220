package remoting

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// socket reads and writes a TCP connection with system calls that the Go scheduler is not told of. Its descriptor never blocks, so each takes only as
// long as copying does; and telling costs: whenever all processors were idle before, a call that is announced wakes the runtime's monitor thread, which then
// ticks every few dozen microseconds until all are idle again. That was a sixth of a broker's processor time.
//
// Read and write may overlap each other, but not themselves.
type socket struct {
	raw syscall.RawConn

	// What the two functions below, which are made once, work on.
	read, written func(fd uintptr) bool
	in            []byte
	got           int
	inErr         error
	vector        []syscall.Iovec // what is left to write
	outErr        error
}

// socketOf gives nil for a connection that is none of TCP.
func socketOf(nc net.Conn) *socket {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{raw: raw}
	s.read, s.written = s.readNow, s.writeNow
	return s
}

func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	s.in = b
	err := s.raw.Read(s.read)
	s.in = nil
	switch {
	case err != nil: // the connection is closed here
		return 0, err
	case s.inErr != nil:
		return 0, s.inErr
	case s.got == 0:
		return 0, io.EOF
	}
	return s.got, nil
}

// readNow tells whether there is an outcome; if not it is called again once there is something to read.
func (s *socket) readNow(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.in))), uintptr(len(s.in)))
		switch errno {
		case 0:
			s.got, s.inErr = int(n), nil
			return true
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			s.inErr = os.NewSyscallError("read", errno)
			return true
		}
	}
}

// vectorMax is the kernel's limit of pieces for one writev.
const vectorMax = 1024

// writeAll writes all pieces, in order.
func (s *socket) writeAll(pieces net.Buffers) error {
	all := s.vector[:0]
	for _, p := range pieces {
		if len(p) > 0 {
			v := syscall.Iovec{Base: unsafe.SliceData(p)}
			v.SetLen(len(p))
			all = append(all, v)
		}
	}
	s.vector, s.outErr = all, nil
	err := s.raw.Write(s.written)
	clear(all)
	s.vector = all[:0]
	if err != nil {
		return err
	}
	return s.outErr
}

func (s *socket) writeNow(fd uintptr) bool {
	for len(s.vector) > 0 {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.vector))), uintptr(min(len(s.vector), vectorMax)))
		switch errno {
		case 0:
			s.skip(int(n))
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			s.outErr = os.NewSyscallError("writev", errno)
			return true
		}
	}
	return true
}

// skip takes n bytes off the front of what is left to write.
func (s *socket) skip(n int) {
	for n > 0 {
		v := &s.vector[0]
		if size := int(v.Len); n < size {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
			v.SetLen(size - n)
			return
		}
		n -= int(v.Len)
		s.vector = s.vector[1:]
	}
}
