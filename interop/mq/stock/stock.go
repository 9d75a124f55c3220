// Package stock fetches unmodified RocketMQ releases and makes them runnable: it owns the artifacts' coordinates (servers.xml, client.xml), our
// three small drivers (Stock.java, a client at work; Admin.java, mqadmin command by command; Requests.java, which writes requests) and the Java options they need. It
// starts nothing itself; start at Fetch.
package stock

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"dledger/interop/jvm"
)

//go:embed servers.xml
var serversPom []byte

//go:embed client.xml
var clientPom []byte

//go:embed Stock.java
var stockSource []byte

//go:embed Admin.java
var adminSource []byte

//go:embed Requests.java
var requestsSource []byte

// Release names a set of artifacts.
type Release string

const (
	Servers Release = "5.3.3" // name server, broker, tools, and the client of the same release
	Client4 Release = "4.9.8" // the client alone
)

// Kit is one release, ready to run.
type Kit struct {
	Release   Release
	BrokerJVM []string // options of brokers, instead of small ones that start quickly
	ClientJVM []string // further options of clients
	java      string
	classPath string
}

// opens lets the servers unmap files, and read addresses of direct buffers, on Java 9 and newer; the release's own start scripts pass the like.
var opens = []string{
	"--add-opens=java.base/java.nio=ALL-UNNAMED",
	"--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
	"--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
	"--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
	"--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
}

// Options are those of a JVM on a small machine that is to start quickly: heap is its limit in MiB.
func Options(heap int) []string {
	return []string{fmt.Sprintf("-Xms%dm", heap/4), fmt.Sprintf("-Xmx%dm", heap), "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC",
		"-XX:TieredStopAtLevel=1", "-Xshare:auto"}
}

// Fetch brings release r onto this machine and compiles the drivers against it, once per content of this package: the result is kept in
// the user's cache directory, where parallel callers may race harmlessly. The error wraps jvm.ErrUnavailable if there is no JDK or Maven.
func Fetch(ctx context.Context, r Release) (*Kit, error) {
	tools, err := jvm.Find()
	if err != nil {
		return nil, err
	}
	pom, sources := serversPom, map[string][]byte{"Stock.java": stockSource, "Admin.java": adminSource, "Requests.java": requestsSource}
	if r == Client4 {
		pom, sources = clientPom, map[string][]byte{"Stock.java": stockSource}
	}
	cache := filepath.Join(tools.Cache, "dledger-interop-mq")
	lib := filepath.Join(cache, fmt.Sprintf("lib-%s-%x", r, sum(pom)))
	err = jvm.Once(lib, func(tmp string) error {
		if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), pom, 0o644); err != nil {
			return fmt.Errorf("write pom.xml: %w", err)
		}
		return jvm.Run(ctx, tmp, tools.Maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+tmp)
	})
	if err != nil {
		return nil, err
	}
	classes := filepath.Join(cache, fmt.Sprintf("classes-%s-%x", r, sum(pom, stockSource, adminSource, requestsSource)))
	err = jvm.Once(classes, func(tmp string) error {
		argv := []string{"-Xlint:all,-processing,-path,-deprecation,-serial,-classfile", "-d", ".", "-cp", filepath.Join(lib, "*")}
		for name, text := range sources {
			if err := os.WriteFile(filepath.Join(tmp, name), text, 0o644); err != nil {
				return fmt.Errorf("write %s: %w", name, err)
			}
			argv = append(argv, name)
		}
		return jvm.Run(ctx, tmp, tools.Javac, argv...)
	})
	if err != nil {
		return nil, err
	}
	return &Kit{Release: r, java: tools.Java, classPath: classes + string(os.PathListSeparator) + filepath.Join(lib, "*")}, nil
}

func sum(parts ...[]byte) []byte {
	h := sha256.Sum256(bytes.Join(parts, []byte{0}))
	return h[:8]
}

// NameServer is the argument list, program first, of the original's name server; home becomes the JVM's user.home, where it logs.
func (k *Kit) NameServer(home, conf string) []string {
	return k.argv(Options(128), home, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", conf)
}

// Broker is the argument list of the original's broker. It wants ROCKETMQ_HOME in its environment, as the name server does.
func (k *Kit) Broker(home, conf string) []string {
	jvm := k.BrokerJVM
	if jvm == nil {
		jvm = Options(384)
	}
	return k.argv(jvm, home, "org.apache.rocketmq.broker.BrokerStartup", "-c", conf)
}

// Client is the argument list of Stock.java.
func (k *Kit) Client(home string, args ...string) []string {
	return k.argv(append(Options(192), k.ClientJVM...), home, "Stock", args...)
}

// Admin is the argument list of Admin.java, which runs one mqadmin command for each line of its input.
func (k *Kit) Admin(home string, args ...string) []string {
	return k.argv(Options(192), home, "Admin", args...)
}

// MQAdmin is the argument list of mqadmin itself.
func (k *Kit) MQAdmin(home string, args ...string) []string {
	return k.argv(Options(192), home, "org.apache.rocketmq.tools.command.MQAdminStartup", args...)
}

// Requests is the argument list of Requests.java, which writes a frame of each request to a broker.
func (k *Kit) Requests(home string) []string {
	return k.argv(Options(128), home, "Requests")
}

func (k *Kit) argv(jvm []string, home, class string, args ...string) []string {
	argv := append([]string{k.java}, opens...)
	argv = append(argv, jvm...)
	argv = append(argv, "-Duser.home="+home, "-cp", k.classPath, class)
	return append(argv, args...)
}
