// Package figure shows what tests measure and do not hold. It is for tests alone, so no arrow of testdata/imports.txt leads to it.
package figure

import (
	"fmt"
	"os"
	"testing"
)

// variable names a file for figures: go test shows what a test that passes has logged only with -v, beside all else. Set by .ci/figures.
const variable = "DLEDGER_FIGURES"

// Log logs a figure, and notes it with the test's name in the file that the environment names, if it does.
func Log(t testing.TB, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Log(text)
	name := os.Getenv(variable)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Error(err)
		return
	}
	_, err = fmt.Fprintf(f, "%s: %s\n", t.Name(), text) // one write: lines of several processes do not mix
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Error(err)
	}
}
