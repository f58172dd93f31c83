package testserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"
)

// Etcd returns an etcd of one member, which ends with the test, or the server in BELLWETHER_ETCD. Its data
// outlives Kill and Start. It elects itself sooner than by default: its shortest lease is 1 s, not 2 s.
func Etcd(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startWhen(healthy, etcdHTTP2, tb, "BELLWETHER_ETCD", "etcd", "etcd-server", func(port string) []string {
		client, peer := "http://"+net.JoinHostPort("127.0.0.1", port), "http://"+FreeAddr(tb)
		return append([]string{
			"--name", "test", "--data-dir", memoryDir(tb),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "test=" + peer,
			"--heartbeat-interval", "50", "--election-timeout", "500",
		}, args...)
	})
}

// memoryDir returns a directory in memory if the machine has one. Etcd always waits for its disk at a
// write, at times for seconds on a shared disk. Tests kill etcd, not the machine.
func memoryDir(tb testing.TB) string {
	const memory, enough = "/dev/shm", 1 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < enough {
		return tb.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "bellwether-etcd-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// healthy is ready for etcd, which listens before it has a leader and can answer requests.
func healthy(addr string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr + "/health")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var health struct {
		Health string `json:"health"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&health); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || health.Health != "true" {
		return fmt.Errorf("etcd is not healthy: %s, %q", resp.Status, health.Health)
	}
	return nil
}
