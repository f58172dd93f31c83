package zklock_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// silentHolder takes the lease on key and falls silent, with a living session.
func silentHolder(t *testing.T, addr, key string, ttl time.Duration) (lease driver.Lease, speak func()) {
	t.Helper()
	l, g := newGated(t, addr, 30*time.Second)
	lease = leasetest.Acquire(t, l, key, ttl)
	g.cut()
	return lease, func() {
		g.open()
		connected(t, l)
	}
}

func connected(t *testing.T, l *zklock.Locker) {
	t.Helper()
	leasetest.Eventually(t, 5*time.Second, "it is connected again", func() bool { return l.Ping(within(t, time.Second)) == nil })
}

func TestTakeover_OfAHolderWhoseSessionLives(t *testing.T) {
	server := shared(t)
	b, key := newLocker(t, server.Addr), newKey()
	const ttl = 1500 * time.Millisecond
	began := time.Now()
	silent, speak := silentHolder(t, server.Addr, key, ttl)

	held := leasetest.MustBeHeld(t, b, key)
	if held.Until.Before(began.Add(ttl)) {
		t.Errorf("Until is %v before the end that the holder believes in", began.Add(ttl).Sub(held.Until))
	}
	freed := watch(t, b, held)
	var taken driver.Lease
	leasetest.Eventually(t, ttl+5*time.Second, "the lease is taken over", func() bool {
		lease, err := b.TryAcquire(t.Context(), key, time.Minute)
		if err != nil && !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("TryAcquire: %v", err)
		}
		taken = lease
		return err == nil
	})
	if now := time.Now(); now.Before(held.Until) {
		t.Errorf("the lease was taken over %v before its announced end", held.Until.Sub(now))
	}
	t.Logf("taken over %v after the announced end", time.Since(held.Until))
	leasetest.MustClose(t, "the watch of the lease that was taken over", freed, 2*time.Second)
	if before, after := leasetest.Token(t, silent), leasetest.Token(t, taken); after <= before {
		t.Errorf("token %d after %d, want a greater one", after, before)
	}

	speak()
	leasetest.MustBeLost(t, "Renew of a lease that was taken over", silent.Renew(t.Context(), time.Minute))
	leasetest.MustBeLost(t, "Release of a lease that was taken over", silent.Release(t.Context()))
	leasetest.MustClose(t, "Lost", lost(t, silent), 5*time.Second)
	leasetest.MustBeHeld(t, newLocker(t, server.Addr), key)
	leasetest.Release(t, taken) // by the Locker that took over
}

// TestTakeover_ByManyAtOnce has all observers see the end at one moment. They have read the same
// version of the same node, and the winner's node has the same version too.
func TestTakeover_ByManyAtOnce(t *testing.T) {
	server := shared(t)
	var observers []*zklock.Locker
	rounds := 0
	for range 8 {
		observers = append(observers, newLocker(t, server.Addr))
	}
	for range 12 {
		key := newKey()
		silentHolder(t, server.Addr, key, 200*time.Millisecond)
		var last time.Time
		for _, l := range observers {
			_, err := l.TryAcquire(t.Context(), key, time.Minute)
			held, ok := errors.AsType[*driver.HeldError](err)
			if err != nil && !ok {
				t.Fatalf("TryAcquire: %v", err)
			}
			if err == nil {
				// This process was paused for the whole 200 ms between its first sight of the lease
				// and its next look at the clock.
				last = time.Time{}
				break
			}
			last = held.Until
		}
		if last.IsZero() {
			continue
		}
		rounds++
		time.Sleep(time.Until(last))
		begin := make(chan struct{})
		var winners atomic.Int64
		var wg sync.WaitGroup
		for _, l := range observers {
			wg.Go(func() {
				<-begin
				_, err := l.TryAcquire(t.Context(), key, time.Minute)
				switch {
				case err == nil:
					winners.Add(1)
				case !errors.Is(err, driver.ErrHeld):
					t.Errorf("TryAcquire: %v", err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d of 8 took the lease over, want 1", n)
		}
	}
	if rounds == 0 {
		t.Error("no round was undisturbed: nothing was tested")
	}
}

// TestExpiry_InALivingProcess leaves a lease alone: at its end its node goes, and watchers are told.
func TestExpiry_InALivingProcess(t *testing.T) {
	server := shared(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	connected(t, b)
	end := time.Now().Add(time.Second)
	lease := leasetest.Acquire(t, a, key, time.Second)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	leasetest.MustClose(t, "the watch", freed, 3*time.Second)
	if now := time.Now(); now.Before(end) {
		t.Errorf("the lease was removed %v before its end", end.Sub(now))
	}
	leasetest.MustClose(t, "Lost", lost(t, lease), time.Second)
	leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute) // by a Locker that has not observed it
}

func TestSessionExpired(t *testing.T) {
	server := shared(t)
	const session = 2 * time.Second
	a, g := newGated(t, server.Addr, session)
	b, key := newLocker(t, server.Addr), newKey()
	leases := []driver.Lease{leasetest.Acquire(t, a, key, time.Minute), leasetest.Acquire(t, a, newKey(), time.Minute)}
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	var waits <-chan struct{} // of the Locker whose session expires
	other := newKey()
	leasetest.Acquire(t, b, other, time.Minute)
	waits = watch(t, a, leasetest.MustBeHeld(t, a, other))

	g.cut()
	took := leasetest.MustClose(t, "the watch of the lease of a session that expires", freed, session+2*time.Second)
	t.Logf("a session of %v was over %v after its connection was lost", session, took)
	if took < session/2 {
		t.Errorf("the lease ended after %v, want not before the session", took)
	}
	next := leasetest.Acquire(t, b, key, time.Minute)
	for _, lease := range leases {
		if leasetest.IsClosed(lost(t, lease)) {
			t.Error("a lease is lost although nobody can know")
		}
	}
	leasetest.MustBeNoAnswer(t, "Renew without a connection", leases[1].Renew(t.Context(), time.Minute))

	g.open()
	for _, lease := range leases {
		leasetest.MustClose(t, "Lost, once a server says so", lost(t, lease), 3*time.Second)
	}
	leasetest.MustClose(t, "a watch that ended with its session", waits, time.Second)
	for _, lease := range leases {
		leasetest.MustBeLost(t, "Renew after the session", lease.Renew(t.Context(), time.Minute))
		leasetest.MustBeLost(t, "Release after the session", lease.Release(t.Context()))
	}
	leasetest.MustBeHeld(t, a, key)
	leasetest.Renew(t, next, time.Minute)                   // by the next holder
	lease := leasetest.Acquire(t, a, newKey(), time.Minute) // in a new session
	leasetest.Release(t, lease)
}

func TestReconnect(t *testing.T) {
	server := shared(t)
	a, g := newGated(t, server.Addr, 10*time.Second)
	b, mine, others := newLocker(t, server.Addr), newKey(), newKey()
	lease, other := leasetest.Acquire(t, a, mine, time.Minute), leasetest.Acquire(t, b, others, time.Minute)
	freed := watch(t, a, leasetest.MustBeHeld(t, a, others))
	missed := newKey()
	gone := leasetest.Acquire(t, b, missed, time.Minute)
	told := watch(t, a, leasetest.MustBeHeld(t, a, missed))

	g.cut()
	leasetest.Release(t, gone) // while a is cut off
	g.open()
	leasetest.MustClose(t, "a release that was missed", told, 3*time.Second)
	if leasetest.IsClosed(freed) || leasetest.IsClosed(lost(t, lease)) {
		t.Error("a lost connection ended a watch or a lease")
	}
	leasetest.Renew(t, lease, time.Minute) // over the next connection
	leasetest.Release(t, other)
	leasetest.MustClose(t, "a watch that was set on the lost connection", freed, 2*time.Second)
	leasetest.Release(t, lease) // over the next connection
}

// TestReconnect_SilentServer has the session's server fall silent, as on a lost machine: the session goes on at the
// other server.
func TestReconnect_SilentServer(t *testing.T) {
	server := shared(t)
	silent, other := testserver.NewProxy(t, server.Addr), testserver.NewProxy(t, server.Addr)
	l := newLocker(t, silent.Addr, other.Addr)
	l.SessionTimeout = 3 * time.Second
	lease := leasetest.Acquire(t, l, newKey(), time.Minute)
	if silent.Connections() == 0 {
		silent, other = other, silent
	}
	silent.Set(testserver.BlackHole)
	leasetest.Eventually(t, l.SessionTimeout+5*time.Second, "the other server answers", func() bool {
		return lease.Renew(within(t, 100*time.Millisecond), time.Minute) == nil
	})
	if other.Connections() == 0 || leasetest.IsClosed(lost(t, lease)) {
		t.Error("the lease did not go on at the other server")
	}
	leasetest.Release(t, lease)
}

// TestReconnect_HandshakeNotAnswered has a server that accepts a handshake and never answers, like
// a starting ZooKeeper. The client would wait longer than connected does.
func TestReconnect_HandshakeNotAnswered(t *testing.T) {
	a, g := newGated(t, shared(t).Addr, 10*time.Second)
	lease := leasetest.Acquire(t, a, newKey(), time.Minute)
	g.silence(t)
	g.drop()
	connected(t, a)
	leasetest.Renew(t, lease, time.Minute) // in the continued session
}

// TestReconnect_AmongRequests loses the connection under many requests, whose replies come in packets
// while the client sets its watches again. The race detector is the judge.
func TestReconnect_AmongRequests(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	a, g := newGated(t, server.Addr, 10*time.Second)
	b := newLocker(t, server.Addr)
	var wg sync.WaitGroup
	waits := make([]<-chan struct{}, 1000)
	leases := make([]driver.Lease, len(waits))
	for w := range 50 {
		wg.Go(func() {
			for i := w; i < len(waits); i += 50 {
				key := newKey()
				leases[i] = leasetest.Acquire(t, b, key, time.Minute)
				waits[i] = watch(t, a, leasetest.MustBeHeld(t, a, key))
			}
		})
	}
	wg.Wait()
	for range 50 {
		g.drop()
		for range 20 {
			wg.Go(func() { connected(t, a) })
		}
		wg.Wait()
	}
	for i, lease := range leases {
		wg.Go(func() {
			if leasetest.IsClosed(waits[i]) {
				t.Error("a lost connection ended a watch")
			}
			leasetest.Release(t, lease)
			leasetest.MustClose(t, "a watch from before the lost connections", waits[i], 5*time.Second)
		})
	}
	wg.Wait()
}

// TestServerRestart kills the server. It keeps its data, so the leases and the watches outlive it.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	held := leasetest.MustBeHeld(t, b, key)
	freed := watch(t, b, held)
	others := leasetest.Acquire(t, b, newKey(), time.Minute)
	unwatched := newKey()
	leasetest.Acquire(t, a, unwatched, time.Minute)
	seen := leasetest.MustBeHeld(t, b, unwatched)

	server.Kill()
	_, err := b.Watch(t.Context(), seen) // b has a watch of held, and may not know of the end yet
	leasetest.MustBeNoAnswer(t, "Watch without a server", err)
	leasetest.MustBeNoAnswer(t, "Ping without a server", b.Ping(t.Context()))
	lockertest.Down(t, b, others)

	server.Start()
	connected(t, a)
	connected(t, b)
	leasetest.MustBeHeld(t, b, key)
	leasetest.Renew(t, lease, time.Minute) // after the restart
	if leasetest.IsClosed(freed) || leasetest.IsClosed(lost(t, lease)) {
		t.Error("the restart ended a watch or a lease")
	}
	before := leasetest.Token(t, lease)
	leasetest.Release(t, lease) // after the restart
	leasetest.MustClose(t, "a watch from before the restart", freed, 2*time.Second)
	if after := leasetest.Acquire(t, b, key, time.Minute).(driver.Tokener).Token(); after <= before {
		t.Errorf("token %d after %d, want a greater one", after, before)
	}
}

// TestSilentServer stops the server: calls end with their contexts, and leave nothing.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	mine, others, free := newKey(), newKey(), newKey()
	lease := leasetest.Acquire(t, a, mine, time.Minute)
	other := leasetest.Acquire(t, b, others, time.Minute)
	held := leasetest.MustBeHeld(t, a, others)

	server.Signal(syscall.SIGSTOP)
	for name, call := range map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error {
			_, err := a.TryAcquire(ctx, free, time.Minute)
			return err
		},
		"Lock": func(ctx context.Context) error {
			_, err := a.Lock(ctx, free, time.Minute)
			return err
		},
		"Watch": func(ctx context.Context) error {
			_, err := a.Watch(ctx, held)
			return err
		},
		"Ping": a.Ping,
		"TryAcquire of a Locker that was never connected": func(ctx context.Context) error {
			_, err := newLocker(t, server.Addr).TryAcquire(ctx, free, time.Minute)
			return err
		},
	} {
		leasetest.MustGiveUp(t, name, call)
	}
	lockertest.Hang(t, a, lease)
	server.Signal(syscall.SIGCONT)

	leasetest.Eventually(t, 10*time.Second, "only the other's lease is left", func() bool { return server.Monitor("zk_ephemerals_count") == 2 })
	for _, key := range []string{free, mine} {
		leasetest.Acquire(t, b, key, time.Minute)
	}
	leasetest.Release(t, other)
}

// TestSilentServer_ForLongerThanASession has sessions run out while the server cannot say so.
// Afterwards all clients learn the same.
func TestSilentServer_ForLongerThanASession(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	const session = time.Second
	a, _ := newGated(t, server.Addr, session)
	b, _ := newGated(t, server.Addr, session)
	key := newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	server.Signal(syscall.SIGSTOP)
	time.Sleep(2 * session)
	isLive := lease.Renew(within(t, 100*time.Millisecond), time.Minute)
	if isLive == nil || errors.Is(isLive, driver.ErrLeaseLost) {
		t.Errorf("Renew while nobody can know: err = %v", isLive)
	}
	server.Signal(syscall.SIGCONT)
	connected(t, a)
	connected(t, b)

	_, errB := b.TryAcquire(t.Context(), key, time.Minute)
	errA := lease.Renew(t.Context(), time.Minute)
	t.Logf("after the silence: the holder renews: %v; another acquires: %v", errA, errB)
	switch {
	case errA == nil && !errors.Is(errB, driver.ErrHeld), errB == nil && !errors.Is(errA, driver.ErrLeaseLost):
		t.Errorf("the holder renews with %v, and another acquires with %v", errA, errB)
	case errA == nil:
		leasetest.Release(t, lease)
	case errB == nil:
		leasetest.MustClose(t, "Lost", lost(t, lease), time.Second)
	default:
		t.Errorf("nobody has the lease: %v, %v", errA, errB)
	}
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	proxy := testserver.NewProxy(t, server.Addr)
	a, b := newLocker(t, proxy.Addr), newLocker(t, server.Addr)
	leasetest.Release(t, leasetest.Acquire(t, b, newKey(), time.Minute)) // creates the prefix
	gone := func() bool { return server.Monitor("zk_ephemerals_count") == 0 }
	leasetest.LostReplies{
		A: a, B: b, NewKey: newKey, Armed: proxy.Armed,
		Lose: func(_, key string, held *driver.HeldError) {
			request := key + ":lease"
			if held != nil {
				request = zklock.Holder(held) // only in the takeover, not in the requests before it
			}
			proxy.SwallowReplyTo(request)
		},
		Silent: func(key string, ttl time.Duration) { silentHolder(t, server.Addr, key, ttl) },
	}.Run(t, "acquire", "refused acquire", "takeover", "renewal", "release")
	leasetest.Eventually(t, 5*time.Second, "nothing is left", gone)

	t.Run("place in the queue", func(t *testing.T) {
		key := newKey()
		if lease, err := b.Lock(t.Context(), key, time.Minute); err != nil || lease.Release(t.Context()) != nil {
			t.Fatal(err)
		}
		first, err := b.Lock(t.Context(), key, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		proxy.SwallowReplyTo(key + ":queue/")
		// A second server knows of the place for certain only after a sync. Counted are
		// requests with the sync's operation and the path.
		dir := a.Prefix + "/" + key + ":queue"
		proxy.CountRequests("\x00\x00\x00\x09" + string(binary.BigEndian.AppendUint32(nil, uint32(len(dir)))) + dir)
		got := make(chan error, 1)
		go func() {
			lease, err := a.Lock(t.Context(), key, time.Minute)
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		leasetest.Eventually(t, 5*time.Second, "it waits for the first", func() bool { return server.Monitor("zk_watch_count") == 1 })
		if n := server.Monitor("zk_ephemerals_count"); n != 2 {
			t.Errorf("%d places in the queue, want 2", n)
		}
		if n := proxy.Requests(); n != 1 {
			t.Errorf("the place is looked for after %d syncs, want 1", n)
		}
		leasetest.Release(t, first)
		if err := <-got; err != nil {
			t.Error(err)
		}
		if proxy.Armed() {
			t.Error("no reply was swallowed: the test tests nothing")
		}
		leasetest.Eventually(t, 5*time.Second, "nothing is left", gone)
	})
}

// TestLostReply_AndNoWayBack loses the reply of an acquire, and then the way to the server until
// the call has failed: the lease does not stay.
func TestLostReply_AndNoWayBack(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	proxy := testserver.NewProxy(t, server.Addr)
	a, g := newGated(t, proxy.Addr, 20*time.Second)
	leasetest.Release(t, leasetest.Acquire(t, a, newKey(), time.Minute)) // creates the prefix
	g.refuse()
	key := newKey()
	proxy.SwallowReplyTo(key + ":lease")
	_, err := a.TryAcquire(t.Context(), key, time.Minute)
	leasetest.MustBeNoAnswer(t, "TryAcquire", err)
	if proxy.Armed() {
		t.Fatal("no reply was swallowed: the test tests nothing")
	}
	if n := server.Monitor("zk_ephemerals_count"); n != 2 {
		t.Fatalf("%d nodes, want the 2 of a lease: the test tests nothing", n)
	}
	g.open()
	leasetest.Eventually(t, 5*time.Second, "nothing is left", func() bool { return server.Monitor("zk_ephemerals_count") == 0 })
	if _, err := a.TryAcquire(t.Context(), key, time.Minute); err != nil {
		t.Errorf("TryAcquire after it: %v", err)
	}
}

// A tape records the output of the standard logger.
type tape struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (p *tape) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *tape) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

func TestClose(t *testing.T) {
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	said := &tape{}
	before := log.Writer()
	log.SetOutput(said)
	t.Cleanup(func() { log.SetOutput(before) })
	ends := func(t *testing.T, l *zklock.Locker, limit time.Duration) {
		t.Helper()
		start := time.Now()
		l.Close()
		took := time.Since(start)
		t.Logf("Close took %v", took)
		if took > limit {
			t.Errorf("Close took %v, want at most %v", took, limit)
		}
		_, err := l.TryAcquire(t.Context(), "k", time.Minute)
		leasetest.MustBeNoAnswer(t, "TryAcquire after Close", err)
		l.Close()
	}
	t.Run("frees its leases at once", func(t *testing.T) {
		a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
		lease := leasetest.Acquire(t, a, key, time.Minute)
		held := leasetest.MustBeHeld(t, b, key)
		freed := watch(t, b, held)
		ends(t, a, 500*time.Millisecond)
		leasetest.MustClose(t, "the watch of a closed Locker's lease", freed, time.Second)
		leasetest.MustClose(t, "Lost of a closed Locker's lease", lost(t, lease), time.Second)
		leasetest.MustBeLost(t, "Release after Close", lease.Release(t.Context()))
		freed = watch(t, b, leasetest.MustBeHeld(t, b, holding(t, server.Addr)))
		b.Close()
		leasetest.MustClose(t, "a closed Locker's watch", freed, time.Second)
		_, err := b.Watch(t.Context(), held)
		leasetest.MustBeNoAnswer(t, "Watch after Close", err)
	})
	t.Run("before any use", func(t *testing.T) { ends(t, zklock.New(server.Addr), 10*time.Millisecond) })
	t.Run("without a server", func(t *testing.T) {
		l := zklock.New(testserver.FreeAddr(t))
		_, err := l.TryAcquire(t.Context(), "k", time.Minute)
		leasetest.MustBeNoAnswer(t, "TryAcquire without a server", err)
		ends(t, l, 1500*time.Millisecond)
	})
	t.Run("without servers", func(t *testing.T) {
		l := zklock.New()
		_, err := l.TryAcquire(t.Context(), "k", time.Minute)
		leasetest.MustBeNoAnswer(t, "TryAcquire without servers", err)
		ends(t, l, 10*time.Millisecond)
	})
	t.Run("of a silent server", func(t *testing.T) {
		connected, connecting := newLocker(t, server.Addr), newLocker(t, server.Addr)
		leasetest.Acquire(t, connected, newKey(), time.Minute)
		server.Signal(syscall.SIGSTOP)
		defer server.Signal(syscall.SIGCONT)
		connecting.Ping(within(t, 100*time.Millisecond))
		ends(t, connected, 1500*time.Millisecond)
		ends(t, connecting, 1500*time.Millisecond)
	})
	if s := said.String(); s != "" {
		t.Errorf("the client logs: %s", s)
	}
}

func holding(t *testing.T, addr string) string {
	t.Helper()
	key := newKey()
	leasetest.Acquire(t, newLocker(t, addr), key, time.Minute)
	return key
}

// TestServers has a dead server, which delays neither the start nor the loss of the server in use.
func TestServers(t *testing.T) {
	server := shared(t)
	dead := testserver.FreeAddr(t)
	for range 5 { // the client shuffles them
		l := newLocker(t, dead, server.Addr)
		start := time.Now()
		leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute))
		if took := time.Since(start); took > time.Second {
			t.Errorf("a dead server beside a living one cost %v", took)
		}
	}

	proxies := []string{testserver.NewProxy(t, server.Addr).Addr, testserver.NewProxy(t, server.Addr).Addr}
	l, g := newGated(t, proxies[0], 10*time.Second, proxies[1])
	lease := leasetest.Acquire(t, l, newKey(), time.Minute)
	g.cutOne()
	start := time.Now()
	leasetest.Renew(t, lease, time.Minute) // by another server
	if took := time.Since(start); took > 800*time.Millisecond {
		t.Errorf("another server was found after %v, want less than the client's pause of 1s", took)
	}
	if leasetest.IsClosed(lost(t, lease)) {
		t.Error("the lease was lost with the server")
	}
}

// TestDial_Fails has Dial fail once: the error has the reason, and the next attempt finds the server.
func TestDial_Fails(t *testing.T) {
	server := shared(t)
	for name, fail := range map[string]func() error{
		"by an error": func() error { return errors.New("boom") },
		"by a panic":  func() error { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocker(t, server.Addr)
			failed := false
			l.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if !failed {
					failed = true
					return nil, fail()
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
			leasetest.MustBeNoAnswer(t, "TryAcquire", err)
			if err != nil && !strings.Contains(err.Error(), "boom") {
				t.Errorf("TryAcquire: err = %v, want why there is no connection", err)
			}
			connected(t, l)
		})
	}
}

// TestHandshake_Refused has no server at first, and then a server that ends each connection in place of an answer, as
// ZooKeeper does without a majority or its former data, and beyond maxClientCnxns: each error has the present reason.
func TestHandshake_Refused(t *testing.T) {
	t.Parallel()
	addr := testserver.FreeAddr(t)
	l := newLocker(t, addr)
	reason := func() string {
		err := l.Ping(within(t, 5*time.Second))
		leasetest.MustBeNoAnswer(t, "Ping", err)
		return err.Error()
	}
	if got := reason(); !strings.Contains(got, "connection refused") {
		t.Errorf("Ping without a server: %s, want why there is no connection", got)
	}
	server, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for c, err := server.Accept(); err == nil; c, err = server.Accept() {
			c.Close()
		}
	}()
	for _, want := range []string{"handshake", "maxClientCnxns", "new Locker"} {
		leasetest.Eventually(t, 5*time.Second, "the error says "+want, func() bool { return strings.Contains(reason(), want) })
	}
}
