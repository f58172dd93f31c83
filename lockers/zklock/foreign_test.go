package zklock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

type unheard struct{}

func (unheard) Printf(string, ...any) {}

func TestForeignNodes(t *testing.T) {
	server := shared(t)
	l := newLocker(t, server.Addr)
	leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute)) // creates the prefix
	conn := connect(t, server.Addr)
	put := func(key, data string) (path string) {
		t.Helper()
		path = l.Prefix + "/" + key + ":lease"
		if _, err := conn.Create(path, []byte(data), zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	refused := func(key, path string) {
		t.Helper()
		_, err := l.TryAcquire(t.Context(), key, time.Minute)
		if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), path) {
			t.Errorf("err = %v, want ErrCorrupt, and the node", err)
		}
	}
	for _, data := range []string{"", "x", "x y", "x 0", "x -1", "x 1 2", " 1", "x 99999999999999999999", strings.Repeat("x", 256<<10) + " 60000"} {
		key := newKey()
		refused(key, put(key, data))
	}

	// Half a lease is held for its length, and cannot be taken over afterwards.
	key := newKey()
	path := put(key, "token 100")
	held := leasetest.MustBeHeld(t, l, key)
	leasetest.MustClose(t, "the watch of a holder without a node", watch(t, l, held), time.Second)
	time.Sleep(time.Until(held.Until))
	refused(key, path)
}

func connect(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(unheard{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// TestFreedByHand deletes a lease's two nodes in one transaction, as the package documentation says.
func TestFreedByHand(t *testing.T) {
	server := shared(t)
	conn := connect(t, server.Addr)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	former := leasetest.Acquire(t, a, key, time.Minute)
	_, err := conn.Multi(
		&zk.DeleteRequest{Path: a.Prefix + "/" + key + ":lease", Version: -1},
		&zk.DeleteRequest{Path: zklock.Holder(leasetest.MustBeHeld(t, b, key)), Version: -1},
	)
	if err != nil {
		t.Fatal(err)
	}
	present := leasetest.Acquire(t, b, key, time.Minute)
	leasetest.MustBeLost(t, "Renew of a lease that was freed by hand", former.Renew(t.Context(), time.Minute))
	leasetest.MustBeLost(t, "Release of a lease that was freed by hand", former.Release(t.Context()))
	leasetest.Renew(t, present, time.Minute) // by the present holder
}

// TestNoLeaveForThePrefix has a Prefix without permission to create: each acquire returns that
// error and costs 1 request, and no request follows.
func TestNoLeaveForThePrefix(t *testing.T) {
	server := shared(t)
	conn := connect(t, server.Addr)
	proxy := testserver.NewProxy(t, server.Addr)
	l := newLocker(t, proxy.Addr)
	l.Prefix = "/" + newKey()
	if _, err := conn.Create(l.Prefix, nil, 0, zk.WorldACL(zk.PermRead)); err != nil {
		t.Fatal(err)
	}
	proxy.CountRequests(":holder") // once in each request that creates or removes a lease
	if _, err := l.TryAcquire(t.Context(), newKey(), time.Minute); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("TryAcquire: err = %v, want %v", err, zk.ErrNoAuth)
	}
	time.Sleep(300 * time.Millisecond)
	if n := proxy.Requests(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// TestPrefix_BelowANodeWithoutPermission has a Prefix that may be created, below a node that forbids
// new children.
func TestPrefix_BelowANodeWithoutPermission(t *testing.T) {
	server := shared(t)
	conn := connect(t, server.Addr)
	l := newLocker(t, server.Addr)
	root := "/" + newKey()
	l.Prefix = root + "/fleet/leases/here"
	for _, path := range []string{root, root + "/fleet"} {
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.SetACL(root, zk.WorldACL(zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute))
}

// TestPrefix_Invalid has each call fail for good: no attempt in the background follows.
func TestPrefix_Invalid(t *testing.T) {
	server := shared(t)
	for _, prefix := range []string{"bellwether", "/bell\x00wether", "/bell//wether"} {
		l := newLocker(t, server.Addr)
		l.Prefix = prefix
		_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
		leasetest.MustBeNoAnswer(t, "TryAcquire", err)
		_, err = l.Lock(t.Context(), newKey(), time.Minute)
		leasetest.MustBeNoAnswer(t, "Lock", err)
		time.Sleep(300 * time.Millisecond)
		if n := zklock.Orphans(l); n != 0 {
			t.Errorf("Prefix %q: %d nodes that cannot exist are to be removed", prefix, n)
		}
	}
}
