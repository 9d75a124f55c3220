package mq

import (
	"bufio"
	wire "encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"dledger/interop/mq/stock"
)

// goldenRequest is one of the frames in internal/golden/rocketmq-requests.json.
type goldenRequest struct {
	Name      string            `json:"name"`
	Serialize string            `json:"serialize"`
	Code      int               `json:"code"`
	Version   int               `json:"version"`
	Opaque    int               `json:"opaque"`
	ExtFields map[string]string `json:"extFields"` // of the JSON header alone
	BodyHex   string            `json:"bodyHex"`
	FrameHex  string            `json:"frameHex"`
}

type goldenRequests struct {
	Source string          `json:"source"`
	Frames []goldenRequest `json:"frames"`
}

var requestLine = regexp.MustCompile(`^([A-Z0-9_]+)\t([0-9a-f]+)$`) // other lines are the release's own

// The requests that tests of package broker go by come out of the release again, byte for byte, when its classes of headers and bodies write them.
func TestGoldenRequestsAreWhatTheOriginalWrites(t *testing.T) {
	kit := fetched(t, stock.Servers)
	argv := kit.Requests(scratch(t))
	cmd := exec.CommandContext(within(t, 2*time.Minute), argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	got := goldenRequests{Source: "rocketmq " + string(kit.Release) + " RemotingCommand.encode"}
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := requestLine.FindStringSubmatch(lines.Text()); m != nil {
			got.Frames = append(got.Frames, requestOf(t, m[1], m[2]))
		}
	}
	must(t, lines.Err())
	name := filepath.Join("..", "..", "internal", "golden", "rocketmq-requests.json")
	text, err := json.MarshalIndent(got, "", "\t")
	must(t, err)
	text = append(text, '\n')
	if *update {
		must(t, os.WriteFile(name, text, 0o644))
		return
	}
	want, err := os.ReadFile(name)
	must(t, err)
	if string(want) != string(text) {
		t.Errorf("written otherwise than in %s (-):\n%s", name, difference(string(want), string(text)))
	}
}

// requestOf takes a frame apart: length, kind of header and its length, header, body.
func requestOf(t *testing.T, name, text string) goldenRequest {
	t.Helper()
	frame, err := hex.DecodeString(text)
	must(t, err)
	kind := wire.BigEndian.Uint32(frame[4:])
	header, body := frame[8:8+kind&0xFFFFFF], frame[8+kind&0xFFFFFF:]
	r := goldenRequest{Name: name, BodyHex: hex.EncodeToString(body), FrameHex: text}
	if kind>>24 == 0 {
		r.Serialize = "JSON"
		must(t, json.Unmarshal(header, &r))
		return r
	}
	r.Serialize = "ROCKETMQ" // 2 code, 1 language, 2 version, 4 opaque, and more
	r.Code, r.Version, r.Opaque = int(wire.BigEndian.Uint16(header)), int(wire.BigEndian.Uint16(header[3:])), int(wire.BigEndian.Uint32(header[5:]))
	return r
}
