package sim

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// keptFile lists lives that found a fault, real or planted, and were shrunk. A line has the fault's name in quotes, seed, steps, clients
// (0 = all) and the numbers of the faults that happen, or "all".
const keptFile = "testdata/kept.txt"

type kept struct {
	name string
	c    Case
}

func (k kept) String() string {
	faults := "all"
	if k.c.Faults != nil {
		faults = strings.Trim(fmt.Sprint(k.c.Faults), "[]")
	}
	return fmt.Sprintf("%q %d %d %d %s", k.name, k.c.Seed, k.c.Steps, k.c.Clients, faults)
}

func readKept(t *testing.T) (list []kept) {
	f, err := os.Open(keptFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var k kept
		name, err := strconv.QuotedPrefix(lines.Text())
		if err == nil {
			k.name, err = strconv.Unquote(name)
		}
		rest := strings.Fields(lines.Text()[len(name):])
		if err == nil && len(rest) >= 3 {
			_, err = fmt.Sscan(strings.Join(rest[:3], " "), &k.c.Seed, &k.c.Steps, &k.c.Clients)
		}
		if err != nil || len(rest) < 3 {
			t.Fatalf("%s: %q: %v", keptFile, lines.Text(), err)
		}
		if rest = rest[3:]; len(rest) == 0 || rest[0] != "all" {
			k.c.Faults = make([]int, len(rest))
			for i, s := range rest {
				if k.c.Faults[i], err = strconv.Atoi(s); err != nil {
					t.Fatalf("%s: %q: %v", keptFile, lines.Text(), err)
				}
			}
		}
		list = append(list, k)
	}
	return list
}

// Lives that found a fault once are lived again and again.
func TestKeptLives(t *testing.T) {
	for _, k := range readKept(t) {
		if r := k.c.Run(); r.Err != nil {
			t.Errorf("%s: %v\nagain: %s", k.name, r.Err, k.c.Command())
		}
	}
}
