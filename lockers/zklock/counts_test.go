package zklock_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// This file counts the Locker's cost for ZooKeeper: requests, watches, nodes.

func TestRequests(t *testing.T) {
	server := shared(t)
	a, atA := newGated(t, server.Addr, 10*time.Second)
	b, atB := newGated(t, server.Addr, 10*time.Second)
	for _, l := range []*zklock.Locker{a, b} {
		leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute))
	}
	check := func(what string, g *gate, want int, f func()) {
		t.Helper()
		if got := g.count(f); got != want {
			t.Errorf("%s: %d requests, want %d", what, got, want)
		}
	}
	key := newKey()
	var lease driver.Lease
	check("acquire", atA, 1, func() { lease = leasetest.Acquire(t, a, key, time.Minute) })
	check("renew", atA, 1, func() { leasetest.Renew(t, lease, time.Minute) })
	var held *driver.HeldError
	check("acquire what is held", atB, 2, func() { held = leasetest.MustBeHeld(t, b, key) })
	var freed <-chan struct{}
	check("a first and nine more watches", atB, 1, func() {
		for range 10 {
			freed = watch(t, b, held)
		}
	})
	check("release", atA, 1, func() { leasetest.Release(t, lease) })
	closes(t, "the watches", freed, 5*time.Second)
	check("a second release", atA, 0, func() { leasetest.MustBeLost(t, "Release", lease.Release(t.Context())) })
	check("a watch of what has ended", atB, 1, func() { closes(t, "it", watch(t, b, held), time.Second) })

	silentHolder(t, server.Addr, key, 500*time.Millisecond)
	time.Sleep(time.Until(leasetest.MustBeHeld(t, b, key).Until))
	check("takeover", atB, 3, func() { leasetest.Acquire(t, b, key, time.Minute) })

	check("lock of an empty queue that has to be made", atA, 5, func() { lease = lock(t, a, key, time.Minute) })
	check("release of the last in a queue", atA, 1, func() { leasetest.Release(t, lease) })
}

// TestWatches_OneForAProcess has a thousand callers in four processes wait for one key.
func TestWatches_OneForAProcess(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	holder, key := newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, holder, key, time.Minute)
	var processes []*zklock.Locker
	for range 4 {
		processes = append(processes, newLocker(t, server.Addr))
	}
	waits := make([]<-chan struct{}, 1000)
	var wg sync.WaitGroup
	for i := range waits {
		wg.Go(func() {
			l := processes[i%len(processes)]
			waits[i] = watch(t, l, leasetest.MustBeHeld(t, l, key))
		})
	}
	wg.Wait()
	if n := server.Monitor("zk_watch_count"); n != 4 {
		t.Errorf("ZooKeeper has %d watches for 1000 waiters in 4 processes, want 4", n)
	}
	for range 3 {
		leasetest.Renew(t, lease, time.Minute)
	}
	time.Sleep(100 * time.Millisecond) // time for the event of a renewal
	for _, freed := range waits {
		if isClosed(freed) {
			t.Fatal("a renewal woke those who wait for the end")
		}
	}
	leasetest.Release(t, lease)
	for _, freed := range waits {
		closes(t, "one of 1000 waiters", freed, 2*time.Second)
	}
	if n := server.Monitor("zk_watch_count"); n != 0 {
		t.Errorf("ZooKeeper still has %d watches", n)
	}
}

func TestCycles_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	newLocker := func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) }
	lockertest.LeavesNothing(t, newLocker, func() map[string]int { return kept(server) })
}

func kept(server *testserver.Server) map[string]int {
	return map[string]int{
		"nodes":           server.Monitor("zk_znode_count"),
		"ephemeral nodes": server.Monitor("zk_ephemerals_count"),
		"watches":         server.Monitor("zk_watch_count"),
	}
}

// TestQueues_LeaveNothing runs the fair mutex, with a node for every key.
func TestQueues_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	l := newLocker(t, server.Addr)
	use := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range 50 {
			wg.Go(func() {
				for i := w; i < n; i += 50 {
					lease, err := l.Lock(t.Context(), fmt.Sprintf("key %d", i), time.Minute)
					if err == nil {
						err = lease.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	use(1) // creates the prefix
	before := kept(server)
	use(500)
	if after := kept(server); !maps.Equal(after, before) {
		t.Errorf("500 queues have left %v, where there were %v", after, before)
	}
}

// TestToken sees tokens rise over releases, sessions and restarts of the server.
func TestToken(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t).OwnOrSkip(t)
	key, last := newKey(), uint64(0)
	rises := func(lease driver.Lease) {
		t.Helper()
		token := lease.(driver.Tokener).Token()
		if token <= last {
			t.Errorf("token %d after %d, want a greater one", token, last)
		}
		last = token
		leasetest.Renew(t, lease, time.Minute)
		if again := lease.(driver.Tokener).Token(); again != token {
			t.Errorf("the token of a renewed lease is %d, was %d", again, token)
		}
	}
	for i := range 3 {
		l := newLocker(t, server.Addr)
		for range 3 {
			lease := leasetest.Acquire(t, l, key, time.Minute)
			rises(lease)
			leasetest.Release(t, lease)
		}
		if i == 1 {
			server.Restart()
		}
		l.Close()
	}
}

func TestPrefix(t *testing.T) {
	server := shared(t)
	l, other := newLocker(t, server.Addr), newLocker(t, server.Addr)
	l.Prefix = "/shop/eu/locks"
	for _, key := range []string{newKey(), ".", "..", "zookeeper", ""} {
		lease := leasetest.Acquire(t, l, key, time.Minute)
		leasetest.MustBeHeld(t, l, key)
		leasetest.Acquire(t, other, key, time.Minute) // another prefix is another key
		leasetest.Release(t, lease)
	}
}
