package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"dledger/internal/raft"
	"dledger/internal/vfs"
)

// The file ROOT/currterm holds the term and the vote in it as the original writes them (MemberState), and one line more, a comment to Java's
// property reader, that checks the rest:
//
//	#crc32c=613e212a
//	voteLeader=n0
//	currTerm=7
//
// The checksum is that of the bytes behind its line. A file without it comes from a Java node; it has to hold both keys and to end with a line end. The
// line comes first so that no part of a file of ours, which a write that failed may leave, looks like one of Java's; where it comes last, and holds for what
// is before it, the file is an older one. Nor does a byte of its own that changed make it one of Java's, which has keys alone: see isOurs.
const (
	termName  = "currterm"
	crcPrefix = "#crc32c="
)

// ballot is a term and the vote in it; "" is no vote.
type ballot struct {
	term    raft.Term
	vote    raft.ID
	foreign bool  // written by a Java node: it has no checksum
	instead error // why the file itself does not count, and one beside it does; nil: it counts, or it is missing
}

func (b ballot) encode() []byte {
	text := fmt.Sprintf("voteLeader=%s\ncurrTerm=%d\n", b.vote, b.term)
	return []byte(crcLine([]byte(text)) + text)
}

func crcLine(text []byte) string {
	return fmt.Sprintf("%s%08x\n", crcPrefix, crc32.Checksum(text, castagnoli))
}

// parseBallot reads the text of a currterm file.
func parseBallot(text []byte) (b ballot, err error) {
	if len(text) == 0 {
		return b, errors.New("is empty")
	}
	if text[len(text)-1] != '\n' {
		return b, errors.New("has no line end at its end: it is cut")
	}
	i := bytes.LastIndex(text, []byte(crcPrefix))
	if i >= 0 {
		line, rest := text[i:], text[:i]
		if i == 0 {
			end := bytes.IndexByte(text, '\n') + 1
			line, rest = text[:end], text[end:]
		}
		if want := crcLine(rest); string(line) != want {
			return b, fmt.Errorf("has a wrong checksum, want %q", strings.TrimSpace(want))
		}
	}
	if i < 0 && isOurs(text) {
		return b, errors.New("has a damaged line where its checksum should be")
	}
	props, err := parseProperties(string(text))
	if err != nil {
		return b, err
	}
	term, hasTerm := props["currTerm"]
	vote, hasVote := props["voteLeader"]
	if !hasTerm || !hasVote {
		return b, errors.New("lacks currTerm or voteLeader")
	}
	n, err := strconv.ParseInt(term, 10, 64)
	if err != nil || n < 0 {
		return b, fmt.Errorf("has currTerm=%q, not a term", term)
	}
	return ballot{term: raft.Term(n), vote: raft.ID(vote), foreign: i < 0}, nil
}

// isOurs tells whether a text that is no valid one was one of ours: it has the prefix of the checksum or a part of it, or what damage left of it, at most three bytes of eight changed, where
// ours has it, before everything or at the last line of an older file. No text of a Java node has: there is a key, and none has more than one letter in common with the prefix.
func isOurs(text []byte) bool {
	if bytes.Contains(text, []byte(crcPrefix)) || len(text) > 0 && strings.HasPrefix(crcPrefix, string(text)) {
		return true
	}
	for _, at := range []int{0, len(text) - len(crcLine(nil))} {
		if at < 0 || at+len(crcPrefix) > len(text) || at > 0 && text[at-1] != '\n' {
			continue
		}
		same := 0
		for i := range crcPrefix {
			if text[at+i] == crcPrefix[i] {
				same++
			}
		}
		if same >= len(crcPrefix)-3 {
			return true
		}
	}
	return false
}

// parseProperties reads what Java nodes write in the property syntax: key=value lines, comments, and the escapes of
// characters that ids may hold. Continued lines are refused: no writer of these files makes them.
func parseProperties(text string) (map[string]string, error) {
	props := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		key, rest, err := unescape(line, "=: \t\f")
		if err != nil {
			return nil, err
		}
		rest = strings.TrimLeft(rest, " \t\f")
		if rest != "" && (rest[0] == '=' || rest[0] == ':') {
			rest = strings.TrimLeft(rest[1:], " \t\f")
		}
		value, _, err := unescape(rest, "")
		if err != nil {
			return nil, err
		}
		props[key] = value
	}
	return props, nil
}

// unescape reads up to a character of stops, and gives what follows from that character on.
func unescape(s, stops string) (word, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if strings.IndexByte(stops, c) >= 0 {
			return b.String(), s[i:], nil
		}
		if c != '\\' {
			b.WriteByte(c)
			continue
		}
		i++
		if i == len(s) {
			return "", "", errors.New("has a continued line")
		}
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			if i+4 >= len(s) {
				return "", "", errors.New("has a cut escape")
			}
			n, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", "", fmt.Errorf("has a bad escape \\u%s", s[i+1:i+5])
			}
			b.WriteRune(rune(n))
			i += 4
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), "", nil
}

// loadBallot takes the highest valid of currterm, currterm.tmp and currterm.bak: a Java node that dies at the wrong moment leaves only the
// latter two. A present currterm that is not valid is an error unless another one is valid and not below floor, the term that the sidecar
// knows of: a term of 0 instead would vote again where this node voted already. What counts in its place has to be above floor: at floor it may be what a Java node
// left before this node wrote, voted, and perhaps went on, which a power cut let the sidecar forget. And .bak is what was there before the last vote, so where it has none, nobody knows that vote.
//
// With ours set no Java node has written here: a file without checksum is damaged, too. So it is where currterm is damaged and was ours: then the files of a Java node are older. So is one that
// the disk does not give back; and where currterm is missing, as in the middle of a Java node's renaming, that may have been the newest.
func loadBallot(fs vfs.FS, dir string, floor raft.Term, ours bool) (best ballot, err error) {
	name := filepath.Join(dir, termName)
	var bad error
	found, missing, older := false, false, false
	for _, suffix := range []string{"", ".tmp", ".bak"} {
		text, unread, err := readSmall(fs, name+suffix)
		if errors.Is(err, os.ErrNotExist) {
			missing = missing || suffix == ""
			continue
		}
		if err != nil {
			return best, err
		}
		var b ballot
		if err = unread; err == nil {
			b, err = parseBallot(text)
			switch {
			case err != nil:
				ours = ours || suffix == "" && isOurs(text)
			case ours && b.foreign:
				err = errors.New("has no checksum")
			}
			if err != nil {
				err = fmt.Errorf("%s %w", name+suffix, err)
			}
		}
		switch {
		case err != nil && (suffix == "" || unread != nil && missing && !found):
			bad = fmt.Errorf("%w; if it cannot be restored, this node has to join anew with an empty directory", err)
		case err != nil: // a write that a crash cut short
		case !found || b.term > best.term || b.term == best.term && best.vote == "":
			best, found, older = b, true, suffix == ".bak"
		}
	}
	switch {
	case bad != nil && (!found || missing || best.term <= floor):
		return best, fmt.Errorf("%w: %w", errBallot, bad)
	case best.term < floor:
		return best, fmt.Errorf("%w: %s holds term %d, but this node has voted in term %d", errBallot, name, best.term, floor)
	}
	if older && best.vote == "" {
		best.vote = UnknownVote
	}
	best.instead = bad
	return best, nil
}

// A member whose disk has no room goes on voting and following. So there is always a file whose space is taken already and that can become currterm; nobody reads it
// under its own name.
const (
	spareName = termName + ".spare"
	spareSize = 512
)

// SaveTerm makes term and vote durable (R6). ErrDiskFull means that they are not saved, and that the store goes on; that there is no room is no reason as long as
// there is a spare file.
func (s *Store) SaveTerm(term raft.Term, vote raft.ID) error {
	if err := s.usable(); err != nil {
		return err
	}
	text := ballot{term: term, vote: vote}.encode()
	name := filepath.Join(s.cfg.Dir, termName)
	err := vfs.WriteAside(s.fs, name, text, !plantedTermNotSynced)
	if isFull(err) {
		switch bad := s.saveInSpare(name, text); {
		case bad == nil:
			s.log.Warn("the disk is full; term and vote went into the spare file", "term", term, "vote", vote)
			err = nil
		case !errors.Is(bad, os.ErrNotExist): // else there is no room, and no spare file
			err = errors.Join(err, bad)
		}
	}
	if err != nil {
		return s.noSpace(slotSize, err)
	}
	if err := s.fs.SyncDir(s.cfg.Dir); err != nil {
		return s.fail(fmt.Errorf("sync directory %s: %w", s.cfg.Dir, err))
	}
	s.mu.Lock()
	s.term, s.vote = term, vote
	s.mu.Unlock()
	s.keepSpare()
	return s.fail(s.side.note(func(m *meta) { m.term = term }))
}

// saveInSpare makes the spare file the file name, with text in it.
func (s *Store) saveInSpare(name string, text []byte) error {
	if len(text) > spareSize {
		return fmt.Errorf("%d bytes do not fit into %s: %w", len(text), spareName, syscall.ENOSPC)
	}
	s.spare = false // what becomes of it keepSpare finds out
	return vfs.WriteSpare(s.fs, filepath.Join(s.cfg.Dir, spareName), name, text)
}

// keepSpare makes the spare file if it is not there, which it looks up at the start, and after it was used. Where that cannot be done it is tried again with the next term.
func (s *Store) keepSpare() {
	if s.spare {
		return
	}
	spare := filepath.Join(s.cfg.Dir, spareName)
	_, err := s.fs.Stat(spare)
	if err != nil {
		var f vfs.File
		if f, err = s.fs.Create(spare, spareSize); err == nil {
			err = f.Close()
		}
	}
	s.spare = err == nil
	if err != nil {
		s.log.Warn("there is no spare file for a term that is saved while the disk is full", "error", err)
	}
}
