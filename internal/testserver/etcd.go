package testserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"
)

// Etcd returns a running etcd of one member, or the one that the environment
// variable BELLWETHER_ETCD names. It ends with the test. Unlike the others it
// keeps its data when it is killed and started again.
//
// It elects itself sooner than by etcd's defaults, so that it is there sooner.
// With that its shortest lease is 1 s; by the defaults it is 2 s.
func Etcd(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return startWhen(healthy, etcdHTTP2, tb, "BELLWETHER_ETCD", "etcd", "etcd-server", func(port string) []string {
		client, peer := "http://"+net.JoinHostPort("127.0.0.1", port), "http://"+FreeAddr(tb)
		return append([]string{
			"--name", "test", "--data-dir", tb.TempDir(),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "test=" + peer,
			"--heartbeat-interval", "50", "--election-timeout", "500",
		}, args...)
	})
}

// healthy is ready for etcd, which listens before it has a leader and can
// answer anything.
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
