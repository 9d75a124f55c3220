package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"dledger/internal/golden"
)

// TestGoldenFramesAreWhatTheOriginalWrites: the frames that tests of other packages go by come out of the released original again, byte for byte, when it
// reads their bodies and writes them. Entries, directories and the answers of running nodes are not made again; other tests here look at those of live nodes.
func TestGoldenFramesAreWhatTheOriginalWrites(t *testing.T) {
	for _, gen := range generations {
		t.Run(string(gen), func(t *testing.T) {
			k := java(t, gen).Java
			text, err := golden.Read("frames-" + gen.Version() + ".json")
			must(t, err)
			var file struct {
				Frames []struct {
					Name, Kind, BodyJSON, FrameHex string
					RemotingCode, Opaque           int
				}
			}
			must(t, json.Unmarshal(text, &file))
			frames := file.Frames[:0]
			var lines strings.Builder
			for _, f := range file.Frames {
				if strings.Contains(f.Name, "body written as a map") {
					continue // an application's own request: the original has no class for it
				}
				frames = append(frames, f)
				fmt.Fprintf(&lines, "%s\t%d\t%d\t%s\t%s\n", f.Kind, f.RemotingCode, f.Opaque, classOf(t, f.Name), f.BodyJSON)
			}
			argv := k.Frames(t.TempDir())
			cmd := exec.CommandContext(within(t, limit), argv[0], argv[1:]...)
			cmd.Stdin, cmd.Stderr = strings.NewReader(lines.String()), os.Stderr
			out, err := cmd.Output()
			must(t, err)
			got := strings.Fields(string(out))
			if len(got) != len(frames) {
				t.Fatalf("%d frames came out, want %d", len(got), len(frames))
			}
			for i, f := range frames {
				if got[i] != f.FrameHex {
					t.Errorf("%s:\ngot  %s\nwant %s", f.Name, got[i], f.FrameHex)
				}
			}
		})
	}
}

// classOf gives the class of the message that a golden frame holds, by the words its name begins with.
func classOf(t *testing.T, name string) string {
	t.Helper()
	for _, c := range []struct{ words, class string }{
		{"metadata", "Metadata"}, {"append", "AppendEntry"}, {"get", "GetEntries"}, {"vote", "Vote"}, {"heartbeat", "HeartBeat"},
		{"leadership transfer", "LeadershipTransfer"}, {"pull", "PullEntries"}, {"push", "PushEntry"}, {"install snapshot", "InstallSnapshot"},
	} {
		if strings.HasPrefix(name, c.words) {
			if strings.Contains(name, " response") {
				return c.class + "Response"
			}
			return c.class + "Request"
		}
	}
	t.Fatalf("no class is known for the frame %q", name)
	return ""
}
