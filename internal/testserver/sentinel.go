package testserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Sentinel is a Redis master with a replica, and three sentinels that watch them.
type Sentinel struct {
	// the roles at the start
	Master, Replica *Server

	tb        testing.TB
	sentinels []*Server
}

// SentinelName is the master's name.
const SentinelName = "bellwether"

// RedisSentinel returns a running master, replica and three sentinels, which end with the test.
func RedisSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	start := func(more ...string) *Server {
		return startWhen(connects, resp, tb, "", "redis-server", "redis-server", func(port string) []string {
			return append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", tb.TempDir(),
				"--repl-diskless-sync-delay", "0"}, more...)
		})
	}
	s := &Sentinel{tb: tb, Master: start()}
	host, port, _ := net.SplitHostPort(s.Master.Addr)
	s.Replica = start("--replicaof", host+" "+port)
	for range 3 {
		s.sentinels = append(s.sentinels, startWhen(connects, resp, tb, "", "redis-server", "redis-server", func(own string) []string {
			// A sentinel writes its knowledge into its file.
			file := filepath.Join(tb.TempDir(), "sentinel.conf")
			text := fmt.Sprintf("bind 127.0.0.1\nport %s\nsentinel monitor %s %s %s 2\nsentinel down-after-milliseconds %s 1000\nsentinel failover-timeout %s 5000\n",
				own, SentinelName, host, port, SentinelName, SentinelName)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				tb.Fatal(err)
			}
			return []string{file, "--sentinel"}
		}))
	}
	for _, sentinel := range s.sentinels {
		s.await("know each other", func(info map[string]string) bool {
			return info["num-other-sentinels"] == "2" && info["num-slaves"] == "1" && info["flags"] == "master"
		}, sentinel)
	}
	return s
}

// Servers returns the sentinels.
func (s *Sentinel) Servers() []*Server { return s.sentinels }

// Addrs returns the sentinels' addresses.
func (s *Sentinel) Addrs() []string {
	var addrs []string
	for _, sentinel := range s.sentinels {
		addrs = append(addrs, sentinel.Addr)
	}
	return addrs
}

// Failover has the replica take over from a living master, and returns when the sentinels confirm it.
func (s *Sentinel) Failover() {
	s.tb.Helper()
	client := redis.NewSentinelClient(&redis.Options{Addr: s.sentinels[0].Addr})
	defer client.Close()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // real servers are learning of each other
		if err = client.Failover(s.tb.Context(), SentinelName).Err(); err == nil {
			s.AwaitMaster(s.Replica)
			return
		}
	}
	s.tb.Fatalf("no failover: %v", err)
}

// AwaitMaster returns when the sentinels take the server for the master.
func (s *Sentinel) AwaitMaster(server *Server) {
	s.tb.Helper()
	_, port, _ := net.SplitHostPort(server.Addr)
	for _, sentinel := range s.sentinels {
		s.await("take "+server.Addr+" for the master", func(info map[string]string) bool { return info["port"] == port }, sentinel)
	}
}

func (s *Sentinel) await(what string, ok func(map[string]string) bool, sentinel *Server) {
	s.tb.Helper()
	client := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr})
	defer client.Close()
	var info map[string]string
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // real servers
		if info, err = client.Master(s.tb.Context(), SentinelName).Result(); err == nil && ok(info) {
			return
		}
	}
	s.tb.Fatalf("the sentinels do not %s: %v, %v", what, info, err)
}
