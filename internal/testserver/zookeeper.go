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

// zookeeperClasses is where Debian's packages put ZooKeeper and its dependencies.
const zookeeperClasses = "/etc/zookeeper/conf:/usr/share/java/*"

// ZooKeeper returns a running ZooKeeper of one server, or the server in the environment variable
// BELLWETHER_ZOOKEEPER. The server ends with the test. Its ticks are short, for sessions of 400 ms
// and more. Its data outlives Kill and Start. Settings are further lines of its configuration.
func ZooKeeper(tb testing.TB, settings ...string) *Server {
	tb.Helper()
	s := &Server{tb: tb, protocol: zookeeperFrames, ready: func(addr string) error {
		// A listening server may still be loading its data, and then not answer.
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
		"forceSync=no", // tests kill ZooKeeper, not the machine
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

// Command sends ZooKeeper a four-letter word and returns the answer.
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

// Monitor returns a number of ZooKeeper's mntr, such as zk_znode_count.
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
