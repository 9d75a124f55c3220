// Package original fetches the Java DLedger and makes it runnable: it owns the artifact's coordinates, our small drivers
// (Node.java, a server; Client.java, the original's client at work; Batch.java, three servers and their load in one JVM; Frames.java, which
// writes frames) and the Java options they need. It starts nothing itself; start at Fetch.
package original

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"dledger/interop/jvm"
)

//go:embed pom.xml
var pom []byte

//go:embed Node.java
var nodeSource []byte

//go:embed Client.java
var clientSource []byte

//go:embed Batch.java
var batchSource []byte

//go:embed Frames.java
var framesSource []byte

// Generation names one of the two wire generations of the original; its value is also our setting `compat`.
type Generation string

const (
	G03 Generation = "0.3" // 0.3.1.2, what every RocketMQ release ships
	G04 Generation = "0.4" // 0.4.0
)

// Version is the release that stands for the generation.
func (g Generation) Version() string {
	if g == G03 {
		return "0.3.1.2"
	}
	return "0.4.0"
}

// Kit is one generation, ready to run.
type Kit struct {
	Gen       Generation
	java      string
	classPath string
}

// opens lets releases of 2022 unmap files on Java 9 and newer. Without it 0.3.1.2 dies at its first truncation or deletion of a file.
var opens = []string{
	"--add-opens=java.base/java.nio=ALL-UNNAMED",
	"--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
	"--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
	"--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
}

// Lean are options for many short-lived servers on a small machine: they start quickly and stay small, and are slower later on.
var Lean = []string{"-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"}

// Fetch brings generation g onto this machine and compiles the drivers against it, once per content of this package: the
// result is kept in the user's cache directory, where parallel callers may race harmlessly. The error wraps jvm.ErrUnavailable if
// there is no JDK or Maven.
func Fetch(ctx context.Context, g Generation) (*Kit, error) {
	tools, err := jvm.Find()
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256(bytes.Join([][]byte{pom, nodeSource, clientSource, batchSource, framesSource, []byte(g.Version())}, []byte{0}))
	home := filepath.Join(tools.Cache, "dledger-interop", fmt.Sprintf("%s-%x", g.Version(), key[:8]))
	if err := jvm.Once(home, func(tmp string) error { return build(ctx, tools, g, tmp) }); err != nil {
		return nil, err
	}
	return &Kit{
		Gen:       g,
		java:      tools.Java,
		classPath: filepath.Join(home, "classes") + string(os.PathListSeparator) + filepath.Join(home, "lib", "*"),
	}, nil
}

// build fetches the original's archives into directory tmp and compiles the drivers there.
func build(ctx context.Context, tools jvm.Tools, g Generation, tmp string) error {
	for name, text := range map[string][]byte{"pom.xml": pom, "Node.java": nodeSource, "Client.java": clientSource, "Batch.java": batchSource, "Frames.java": framesSource} {
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err := jvm.Run(ctx, tmp, tools.Maven, "-q", "-B", "-Ddledger.version="+g.Version(), "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(tmp, "lib")); err != nil {
		return err
	}
	return jvm.Run(ctx, tmp, tools.Javac, "-Xlint:all,-processing,-path", "-d", "classes",
		"-cp", filepath.Join("lib", "*"), "Node.java", "Client.java", "Batch.java", "Frames.java")
}

// Node is the argument list, program first, of a server with the given `KEY=VALUE` settings; see Node.java for what it prints.
// jvm holds further Java options, as Lean does; home becomes the JVM's user.home, where the originals put their own logs.
func (k *Kit) Node(jvm []string, home string, settings ...string) []string {
	return k.argv(jvm, home, "Node", settings)
}

// Client is the argument list of Client.java: count entries of size bytes, threads in flight.
func (k *Kit) Client(jvm []string, home, group, peers string, count, threads, size int) []string {
	return k.argv(jvm, home, "Client", []string{group, peers, fmt.Sprint(count), fmt.Sprint(threads), fmt.Sprint(size)})
}

// Batch is the argument list of Batch.java: batches of n entries of size bytes, inFlight of them at a time, measured for run after warm.
func (k *Kit) Batch(jvm []string, home, peers, base string, n, size, inFlight int, warm, run time.Duration) []string {
	return k.argv(jvm, home, "Batch", []string{peers, base, fmt.Sprint(n), fmt.Sprint(size), fmt.Sprint(inFlight), fmt.Sprint(warm.Milliseconds()), fmt.Sprint(run.Milliseconds())})
}

// Frames is the argument list of Frames.java.
func (k *Kit) Frames(home string) []string { return k.argv(Lean, home, "Frames", nil) }

func (k *Kit) argv(jvm []string, home, class string, args []string) []string {
	argv := append([]string{k.java}, opens...)
	argv = append(argv, jvm...)
	argv = append(argv, "-Duser.home="+home, "-cp", k.classPath, class)
	return append(argv, args...)
}
