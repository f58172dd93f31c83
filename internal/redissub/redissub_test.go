package redissub

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/redisdial"
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
			Share(rdb).Listen(context.Background(), channel, Listener{
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

// TestListen_ClusterMoves has a cluster's client learn of another master while the old one goes on to answer, as after
// a failover by sentinels, or when a node has left its cluster.
func TestListen_ClusterMoves(t *testing.T) {
	t.Parallel()
	var master atomic.Pointer[string]
	before, after := testserver.Redis(t).OwnOrSkip(t).Addr, testserver.Redis(t).OwnOrSkip(t).Addr
	master.Store(&before)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: testserver.Slots - 1, Nodes: []redis.ClusterNode{{Addr: *master.Load()}}}}, nil
	}})
	defer rdb.Close()
	up, heard := make(chan struct{}, 2), make(chan string, 1)
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		Share(rdb).Listen(ctx, "channel", Listener{Up: func() { up <- struct{}{} }, Message: func(text string) { heard <- text }})
	}()
	<-up
	master.Store(&after)
	rdb.ReloadState(ctx)
	select {
	case <-up:
	case <-time.After(5 * time.Second):
		t.Fatal("still at the former master after 5 s")
	}
	if err := rdb.Publish(ctx, "channel", "message").Err(); err != nil {
		t.Fatal(err)
	}
	select {
	case text := <-heard:
		if text != "message" {
			t.Errorf("heard %q", text)
		}
	case <-time.After(5 * time.Second):
		t.Error("a message at the new master is not heard")
	}
	cancel()
	<-ended
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
		Share(rdb).Listen(ctx, "channel", Listener{Up: func() { told <- nil }, Down: func(err error) { told <- err }})
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

// A tlsFront accepts TLS before a server without it.
type tlsFront struct {
	addr string

	mu         sync.Mutex // guards the fields below
	conns      []net.Conn // all so far
	subscribed *tls.Conn  // the first with a subscription
	silent     bool       // new connections get no handshake
}

// newTLSFront returns a front to the server. It accepts the client's request for maintenance notifications.
func newTLSFront(t *testing.T, server string) *tlsFront {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	front := &tlsFront{addr: l.Addr().String()}
	t.Cleanup(func() {
		l.Close()
		front.cut()
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			front.mu.Lock()
			front.conns = append(front.conns, c)
			silent := front.silent
			front.mu.Unlock()
			if !silent {
				go front.serve(tls.Server(c, certified.TLS), server)
			}
		}
	}()
	return front
}

func (f *tlsFront) serve(c *tls.Conn, server string) {
	defer c.Close()
	s, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		io.Copy(c, s)
		c.Close()
	}()
	for b := make([]byte, 64<<10); ; {
		n, err := c.Read(b)
		switch {
		case err != nil:
			return
		case bytes.Contains(b[:n], []byte("maint_notifications")):
			c.Write([]byte("+OK\r\n"))
			continue
		case bytes.Contains(b[:n], []byte("subscribe")):
			f.mu.Lock()
			f.subscribed = cmp.Or(f.subscribed, c)
			f.mu.Unlock()
		}
		s.Write(b[:n])
	}
}

// cut closes all connections. New ones are accepted and get no handshake.
func (f *tlsFront) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silent = true
	for _, c := range f.conns {
		c.Close()
	}
}

// listenTLS listens through the front, and returns the reasons of Down, and nil for each Up.
func listenTLS(t *testing.T, rdb *redis.Client) (told <-chan error, cancel func(), ended <-chan struct{}) {
	ctx, cancel := context.WithCancel(t.Context())
	tell, end := make(chan error, 100), make(chan struct{})
	go func() {
		defer close(end)
		Share(rdb).Listen(ctx, "channel", Listener{Up: func() { tell <- nil }, Down: func(err error) { tell <- err }})
	}()
	if err := <-tell; err != nil {
		t.Fatal(err)
	}
	return tell, cancel, end
}

// TestListen_TLSLost loses a connection, and its server is silent: the client would dial for eight seconds.
func TestListen_TLSLost(t *testing.T) {
	front := newTLSFront(t, testserver.Redis(t).Addr)
	rdb := redis.NewClient(&redis.Options{Addr: front.addr, TLSConfig: &tls.Config{InsecureSkipVerify: true}, DialTimeout: 8 * time.Second})
	defer rdb.Close()
	redisdial.Of(rdb)
	told, cancel, ended := listenTLS(t, rdb)
	front.cut()
	lost := time.Now()
	if err := <-told; err == nil || time.Since(lost) > 3*time.Second {
		t.Errorf("down after %v because of %v", time.Since(lost), err)
	}
	left := time.Now()
	cancel()
	if <-ended; time.Since(left) > time.Second {
		t.Errorf("Listen returned %v after the end of its context", time.Since(left))
	}
}

// TestListen_TLSMoving has a server that asks the client to move. A client without redisdial's hook subscribes
// again inside Receive.
func TestListen_TLSMoving(t *testing.T) {
	redis.SetLogger(silence{})
	for _, hook := range []bool{false, true} {
		front := newTLSFront(t, testserver.Redis(t).Addr)
		rdb := redis.NewClient(&redis.Options{Addr: front.addr, TLSConfig: &tls.Config{InsecureSkipVerify: true}})
		defer rdb.Close()
		if hook {
			redisdial.Of(rdb)
		}
		told, cancel, ended := listenTLS(t, rdb)
		front.mu.Lock()
		fmt.Fprintf(front.subscribed, ">4\r\n$6\r\nMOVING\r\n:1\r\n:10\r\n$%d\r\n%s\r\n", len(front.addr), front.addr)
		front.mu.Unlock()
		rdb.Publish(t.Context(), "channel", "before the move")
		if err := <-told; err == nil {
			t.Errorf("with a hook: %t: a second Up without a Down", hook)
		} else if err := <-told; err != nil {
			t.Errorf("with a hook: %t: down again: %v", hook, err)
		}
		cancel()
		<-ended
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
