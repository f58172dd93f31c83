package testserver

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// zookeeperClasses is where Debian's packages put ZooKeeper and all that it
// needs.
const zookeeperClasses = "/etc/zookeeper/conf:/usr/share/java/*"

// ZooKeeper returns a running ZooKeeper of one server, or the one that the
// environment variable BELLWETHER_ZOOKEEPER names. It ends with the test. Its
// ticks are short, so that sessions may be: 400 ms and more. What it keeps
// outlives Kill and Start.
//
// Settings are further lines of its configuration.
func ZooKeeper(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, protocol: zookeeperFrames, ready: func(addr string) error {
		// A server that listens may still be reading what it has kept, and
		// then leave a question without an answer.
		said, err := command(addr, "srvr", 250*time.Millisecond)
		if err == nil && !strings.Contains(said, "Mode:") {
			err = fmt.Errorf("ZooKeeper is not ready: %.100q", said)
		}
		return err
	}}
	if s.Addr = os.Getenv("BELLWETHER_ZOOKEEPER"); s.Addr != "" {
		s.await()
		return s
	}
	java, err := exec.LookPath("java")
	if _, missing := os.Stat("/usr/share/java/zookeeper.jar"); err != nil || missing != nil {
		tb.Fatal("ZooKeeper is not installed: run 'make deps' (or 'apt-get install zookeeper default-jre-headless'), or set BELLWETHER_ZOOKEEPER=host:port to use a running one")
	}
	s.Addr = FreeAddr(tb)
	_, port, _ := net.SplitHostPort(s.Addr)
	dir := tb.TempDir()
	config := strings.Join(append([]string{
		"dataDir=" + filepath.Join(dir, "data"),
		"clientPortAddress=127.0.0.1",
		"clientPort=" + port,
		"tickTime=200",
		"maxSessionTimeout=60000",
		"maxClientCnxns=0",
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
		"extendedTypesEnabled=true",
		"forceSync=no", // it is killed, the machine is not
		"preAllocSize=1024",
	}, settings...), "\n") + "\n"
	file := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.own([]string{java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-cp", zookeeperClasses, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file})
	return s
}

// Command sends ZooKeeper one of its four-letter words and returns what it says.
func (s *Server) Command(word string) (string, error) {
	return command(s.Addr, word, 5*time.Second)
}

func command(addr, word string, limit time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(c, word); err != nil {
		return "", err
	}
	said, err := io.ReadAll(c)
	return string(said), err
}

// Monitor returns one of the numbers of ZooKeeper's mntr, such as
// zk_znode_count.
func (s *Server) Monitor(name string) int {
	s.tb.Helper()
	said, err := s.Command("mntr")
	for line := range strings.Lines(said) {
		if field, value, _ := strings.Cut(strings.TrimSpace(line), "\t"); err == nil && field == name {
			var n float64
			if n, err = strconv.ParseFloat(value, 64); err == nil {
				return int(n)
			}
		}
	}
	s.tb.Fatal(fmt.Errorf("ZooKeeper at %s does not say %s: %v", s.Addr, name, err))
	return 0
}
