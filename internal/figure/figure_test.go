package figure

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFiguresAreNotedWhereTheEnvironmentSays(t *testing.T) {
	t.Setenv(variable, "")
	Log(t, "nowhere")
	name := filepath.Join(t.TempDir(), "figures")
	t.Setenv(variable, name)
	Log(t, "%d apples", 3)
	Log(t, "pears")
	const want = "TestFiguresAreNotedWhereTheEnvironmentSays: 3 apples\nTestFiguresAreNotedWhereTheEnvironmentSays: pears\n"
	if text, err := os.ReadFile(name); err != nil || string(text) != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
}
