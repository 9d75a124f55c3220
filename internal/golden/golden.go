// Package golden holds known-good bytes of the Java originals, for tests: frames, entries, index records, store directories,
// JSON corner cases and exchanges with running nodes. Only tests import it. README.md
// says of which release each is, and how it was made.
package golden

import "embed"

//go:embed *.json
var files embed.FS

// Read gives the content of one golden file, named without a directory ("frames-0.4.0.json").
func Read(name string) ([]byte, error) { return files.ReadFile(name) }
