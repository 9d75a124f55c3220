package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// Go's runtime has a thread that watches system calls (sysmon). It goes to sleep when all processors are idle and is woken by the next call that may block; then
// it ticks every 20 µs. A replica is idle and busy again some thousand times a second, and spends a sixth of its processor time on that thread. With
// GODEBUG=schedtrace the thread does not go to sleep; it ticks more and more seldom instead, down to every 10 ms, whatever is idle. The number is the
// time in ms between two lines of statistics on standard error, here the longest there is, 24 days. The runtime reads it only at the start of a process.
const quietSetting = "schedtrace=2147483647"

// quiet makes this process one with that setting, if args run a replica and nobody has set it. It returns where nothing is to be done or it cannot be
// done: the process then works as well, at a higher price.
func quiet(args []string) {
	setting, ok := quieter(args, os.Getenv("GODEBUG"))
	if !ok || os.Setenv("GODEBUG", setting) != nil {
		return
	}
	_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ()) // see above
}

// quieter gives what GODEBUG should be, and whether that is another value than it has.
func quieter(args []string, setting string) (string, bool) {
	switch {
	case len(args) == 0 || args[0] != "broker" && args[0] != "server" || slices.Contains(args, "--help"):
		return setting, false
	case setting == "":
		return quietSetting, true
	case slices.ContainsFunc(strings.Split(setting, ","), func(s string) bool { return strings.HasPrefix(s, "schedtrace=") }):
		return setting, false
	}
	return setting + "," + quietSetting, true
}
