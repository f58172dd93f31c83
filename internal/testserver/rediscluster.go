package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Slots is the number of slots in a Redis Cluster.
const Slots = 16384

// A Cluster is a running Redis Cluster.
type Cluster struct {
	// Masters are the masters at the start; the slots are divided among them evenly, in order.
	// Replicas are their replicas, in the same order, or empty.
	Masters, Replicas []*Server

	tb testing.TB
}

// nodeTimeout is the silence after which nodes take another for dead. An election of a replica takes longer. Without
// replicas nothing waits for it, and on a crowded machine a cluster that is down for a moment fails tests.
func nodeTimeout(replicas int) time.Duration {
	if replicas > 0 {
		return time.Second
	}
	return 3 * time.Second
}

// RedisCluster returns a running cluster of three masters with replicas each, which ends with the test.
func RedisCluster(tb testing.TB, replicas int) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb}
	const masters = 3
	for range masters {
		c.Masters = append(c.Masters, redisNode(tb, nodeTimeout(replicas)))
	}
	for range replicas * masters {
		c.Replicas = append(c.Replicas, redisNode(tb, nodeTimeout(replicas)))
	}
	// All nodes are introduced to each other: gossip alone takes seconds.
	for i, s := range c.Servers() {
		c.Do(s, "cluster", "set-config-epoch", i+1) // or they would have conflicting epochs
		for _, other := range c.Servers()[:i] {
			host, port, _ := net.SplitHostPort(other.Addr)
			c.Do(s, "cluster", "meet", host, port, other.busPort())
		}
	}
	for i, s := range c.Masters {
		c.Do(s, "cluster", "addslotsrange", i*Slots/masters, (i+1)*Slots/masters-1)
	}
	for i, s := range c.Replicas {
		master := c.ID(c.Masters[i/replicas])
		c.await("know each other", func() error {
			_, err := c.try(s, "cluster", "replicate", master)
			return err
		})
	}
	c.await("form", c.whole)
	return c
}

func redisNode(tb testing.TB, timeout time.Duration) *Server {
	bus := FreeAddr(tb)
	_, busPort, _ := net.SplitHostPort(bus)
	return startWhen(connects, resp, tb, "", "redis-server", "redis-server", func(port string) []string {
		return []string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no", "--dir", tb.TempDir(),
			"--cluster-enabled", "yes", "--cluster-port", busPort, "--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
			"--repl-diskless-sync-delay", "0"}
	})
}

func (s *Server) busPort() string {
	for i, arg := range s.args {
		if arg == "--cluster-port" {
			return s.args[i+1]
		}
	}
	return ""
}

// Servers returns all nodes, the masters first.
func (c *Cluster) Servers() []*Server {
	return append(c.Masters[:len(c.Masters):len(c.Masters)], c.Replicas...)
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.Servers() {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Do runs a command on one node, and returns its reply.
func (c *Cluster) Do(s *Server, args ...any) any {
	c.tb.Helper()
	reply, err := c.try(s, args...)
	if err != nil {
		c.tb.Fatalf("%s: %v: %v", s.Addr, args, err)
	}
	return reply
}

func (c *Cluster) try(s *Server, args ...any) (any, error) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	return rdb.Do(context.Background(), args...).Result()
}

// ID returns a node's name in the cluster.
func (c *Cluster) ID(s *Server) string { return c.Do(s, "cluster", "myid").(string) }

// Owner returns the slot of a key, and its master at the start.
func (c *Cluster) Owner(key string) (slot int, master *Server) {
	slot = int(c.Do(c.Masters[0], "cluster", "keyslot", key).(int64))
	for i, s := range c.Masters {
		if slot < (i+1)*Slots/len(c.Masters) {
			master = s
			break
		}
	}
	return slot, master
}

// Way returns the slot of a key, its master at the start, and another master.
func (c *Cluster) Way(key string) (slot int, from, to *Server) {
	slot, from = c.Owner(key)
	to = c.Masters[0]
	if from == to {
		to = c.Masters[1]
	}
	return slot, from, to
}

// RedisRing returns three servers that do not know each other, as the shards of a client's ring.
func RedisRing(tb testing.TB) map[string]string {
	tb.Helper()
	addrs := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		addrs[name] = Redis(tb).OwnOrSkip(tb).Addr
	}
	return addrs
}

// Migrate begins to move a slot: the first server redirects requests for missing keys to the second.
func (c *Cluster) Migrate(slot int, from, to *Server) {
	c.tb.Helper()
	c.Do(to, "cluster", "setslot", slot, "importing", c.ID(from))
	c.Do(from, "cluster", "setslot", slot, "migrating", c.ID(to))
}

// Move moves the present keys of a slot in migration, and returns their number.
func (c *Cluster) Move(slot int, from, to *Server) (moved int) {
	c.tb.Helper()
	host, port, _ := net.SplitHostPort(to.Addr)
	for {
		keys := c.Do(from, "cluster", "getkeysinslot", slot, 100).([]any)
		if len(keys) == 0 {
			return moved
		}
		// One at a time, as with a large slot whose keys take long.
		for _, key := range keys {
			c.Do(from, "migrate", host, port, key, 0, 5000)
			moved++
		}
	}
}

// Settle ends the move of a slot after all its keys have moved.
func (c *Cluster) Settle(slot int, from, to *Server) {
	c.tb.Helper()
	id := c.ID(to)
	for _, s := range []*Server{to, from} {
		c.Do(s, "cluster", "setslot", slot, "node", id)
	}
}

// Failover promotes a replica by a handover from its master, and returns afterwards.
func (c *Cluster) Failover(replica *Server) {
	c.tb.Helper()
	c.Do(replica, "cluster", "failover")
	c.AwaitMaster(replica)
}

// AwaitMaster returns when a replica has become a master.
func (c *Cluster) AwaitMaster(replica *Server) {
	c.tb.Helper()
	c.await("elect "+replica.Addr, func() error {
		role, err := c.try(replica, "role")
		if err == nil && role.([]any)[0] != "master" {
			err = errors.New("it is none yet")
		}
		return err
	})
}

// whole returns nil if all nodes know each other and all slots, and each replica follows its master.
func (c *Cluster) whole() error {
	for _, s := range c.Servers() {
		info, err := c.try(s, "cluster", "info")
		if err != nil {
			return err
		}
		for _, want := range []string{"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", Slots),
			fmt.Sprintf("cluster_known_nodes:%d", len(c.Servers())), fmt.Sprintf("cluster_size:%d", len(c.Masters))} {
			if !strings.Contains(info.(string), want+"\r\n") {
				return fmt.Errorf("%s does not say %s", s.Addr, want)
			}
		}
		nodes, err := c.try(s, "cluster", "nodes")
		if err != nil {
			return err
		}
		if n := strings.Count(nodes.(string), " connected"); n != len(c.Servers()) || strings.Count(nodes.(string), " slave ")+strings.Count(nodes.(string), ",slave ") != len(c.Replicas) {
			return fmt.Errorf("%s has %d links and knows\n%s", s.Addr, n, nodes)
		}
	}
	for _, s := range c.Replicas {
		if repl, err := c.try(s, "info", "replication"); err != nil || !strings.Contains(repl.(string), "master_link_status:up") {
			return fmt.Errorf("%s does not follow its master: %v", s.Addr, err)
		}
	}
	return nil
}

func (c *Cluster) await(what string, ready func() error) {
	c.tb.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // real processes are talking
		if err = ready(); err == nil {
			return
		}
	}
	c.tb.Fatalf("the cluster does not %s: %v", what, err)
}
