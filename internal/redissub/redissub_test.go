package redissub

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// TestListen_Cluster kills a node of a cluster, of which no node has all processes. Its processes go
// elsewhere long before a replica takes over. Processes at other nodes hear all messages.
func TestListen_Cluster(t *testing.T) {
	redis.SetLogger(silence{}) // dials fail here on purpose
	c := testserver.RedisCluster(t, 0)
	const channel, processes = "channel", 48 // by chance, a node has no process once in 10⁸ runs

	var clients []*redis.ClusterClient
	var up [processes]atomic.Bool
	var lost, heard [processes]atomic.Int64
	ended := make(chan struct{})
	for i := range processes {
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), DialerRetries: 1})
		clients = append(clients, rdb)
		t.Cleanup(func() { rdb.Close() })
		go func() {
			Listen(context.Background(), rdb, channel, Listener{
				Up:      func() { up[i].Store(true) },
				Down:    func(error) { up[i].Store(false); lost[i].Add(1) },
				Message: func(string) { heard[i].Add(1) },
			})
			ended <- struct{}{}
		}()
	}
	await := func(what string, ok func(i int) bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) { // real servers
			n := 0
			for i := range processes {
				if ok(i) {
					n++
				}
			}
			if n == processes {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d of %d processes", what, n, processes)
			}
		}
	}
	await("at first", func(i int) bool { return up[i].Load() })

	at := map[*testserver.Server]int{}
	for _, s := range c.Masters {
		at[s] = int(c.Do(s, "pubsub", "numsub", channel).([]any)[1].(int64))
		if at[s] == 0 || at[s] == processes {
			t.Errorf("%d of %d processes listen at one of three nodes", at[s], processes)
		}
	}
	_, dead, publisher := c.Way(channel)
	dead.Kill()
	c.Do(publisher, "publish", channel, "after the death of a node")
	// Processes at the other nodes have heard the message, without a gap.
	await("elsewhere", func(i int) bool { return lost[i].Load() > 0 || heard[i].Load() == 1 })
	undisturbed := 0
	for i := range processes {
		if lost[i].Load() == 0 {
			undisturbed++
		}
	}
	if undisturbed < processes-at[dead] {
		t.Errorf("%d processes have not lost their connection, want the %d at other nodes", undisturbed, processes-at[dead])
	}
	await("with a dead node", func(i int) bool { return up[i].Load() })
	before := [processes]int64{}
	for i := range processes {
		before[i] = heard[i].Load()
	}
	c.Do(publisher, "publish", channel, "again")
	await("again", func(i int) bool { return heard[i].Load() > before[i] })

	for _, rdb := range clients {
		rdb.Close()
	}
	for range processes {
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			t.Fatal("a listener goes on although its client is closed")
		}
	}
}

// TestListen_PanicInTheClient: after a dialer's panic in Subscribe or Receive, Listen reports and reconnects.
func TestListen_PanicInTheClient(t *testing.T) {
	server := testserver.Redis(t)
	var dials atomic.Int32
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 1 || ctx.Err() != nil {
			panic("boom")
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	defer rdb.Close()
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan error, 100), make(chan struct{}) // nil: up
	go func() {
		defer close(ended)
		Listen(ctx, rdb, "channel", Listener{Up: func() { told <- nil }, Down: func(err error) { told <- err }})
	}()
	next := func() error {
		select {
		case err := <-told:
			return err
		case <-time.After(5 * time.Second):
			t.Fatal("the listener has ended")
			return nil
		}
	}
	mustBeUpAfter := func(what string) {
		t.Helper()
		if err := next(); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("%s: down because of %.100v, want the panic", what, err)
		}
		if err := next(); err != nil {
			t.Fatalf("%s: down because of %v, want up", what, err)
		}
	}
	mustBeUpAfter("a panic while subscribing")
	if err := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	mustBeUpAfter("a panic inside Receive")
	cancel()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the listener goes on although its context has ended")
	}
}

func TestClosed_PanicInTheClient(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	rdb.AddHook(testserver.Hook(func(context.Context, []redis.Cmder, func() error) error { panic("boom") }))
	if closed(t.Context(), rdb) {
		t.Error("a client whose hook panics is taken for a closed one")
	}
}

func TestChannel(t *testing.T) {
	wrapped := struct{ redis.UniversalClient }{redis.NewClient(&redis.Options{DB: 3})}
	for want, rdb := range map[string]redis.UniversalClient{
		"c:3": redis.NewClient(&redis.Options{DB: 3}),
		"c:2": redis.NewFailoverClient(&redis.FailoverOptions{DB: 2}),
		"c:5": redis.NewRing(&redis.RingOptions{DB: 5}),
		"c:0": wrapped,
	} {
		if got := Channel(rdb, "c"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		rdb.Close()
	}
}
