package dledgertest_test

import (
	"testing"

	"dledger/dledgertest"
)

var t *testing.T // in a program: of the test

// What was acknowledged outlives its leader. This takes a second of the cluster's time and milliseconds of the machine's.
func ExampleRun() {
	dledgertest.Run(t, 3, func(c *dledgertest.Cluster) {
		e, err := c.Append(c.T.Context(), []byte("hello"))
		if err != nil {
			c.T.Fatal(err)
		}
		c.Kill(c.Leader().ID) // loses what it had not synced

		l := c.Leader() // the next one
		if _, err := l.Confirm(c.T.Context()); err != nil {
			c.T.Fatal(err) // before it, the new leader may not know yet what is committed
		}
		got, err := l.Get(e.Index)
		if err != nil || string(got.Body) != "hello" {
			c.T.Errorf("entry %d is %q, %v", e.Index, got.Body, err)
		}
		c.Agree() // starts the dead member again, and compares all logs
	})
}

// TestExampleRuns runs the example: there is no *testing.T where examples are run.
func TestExampleRuns(test *testing.T) {
	t = test
	ExampleRun()
}
