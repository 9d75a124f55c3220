package dledger_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"

	"dledger/internal/vfs"
)

// harm damages a file.
func harm(mem *vfs.Mem, name, how string) (err error) {
	f, err := mem.OpenFile(name, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = f.Close()
		}
	}()
	size, err := f.Size()
	if err != nil {
		return err
	}
	switch how {
	case "a bit":
		return mem.Flip(name, size/2, 0x10)
	case "the tail":
		return f.Truncate(size - 5)
	case "everything":
		return f.Truncate(0)
	}
	return fmt.Errorf("no damage is called %q", how)
}

// forge gives a snapshot another term, with a checksum that fits.
func forge(mem *vfs.Mem, name string, term uint64) error {
	b, err := vfs.ReadFile(mem, name)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(b[16:], term)
	sum := crc32.Checksum(b[:len(b)-4], crc32.MakeTable(crc32.Castagnoli))
	binary.BigEndian.PutUint32(b[len(b)-4:], sum)
	return vfs.Replace(mem, name, b)
}
