package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

func newClient(tb testing.TB, addr string, options ...grpc.DialOption) *clientv3.Client {
	tb.Helper()
	return clientOf(tb, clientv3.Config{Endpoints: []string{addr}, DialOptions: options})
}

func clientOf(tb testing.TB, config clientv3.Config) *clientv3.Client {
	tb.Helper()
	config.Logger = zap.NewNop()
	client, err := clientv3.New(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	return client
}

// newLocker returns a Locker with its own client, as in another process.
func newLocker(tb testing.TB, addr string, options ...grpc.DialOption) *etcdlock.Locker {
	tb.Helper()
	l := etcdlock.New(newClient(tb, addr, options...))
	tb.Cleanup(func() { l.Close() })
	return l
}

// requests counts a client's requests by method, and can lose a reply.
type requests struct {
	mu   sync.Mutex // guards the fields below
	n    map[string]int
	lose string // the method with a lost reply,
	skip int    // after that many others
}

func (r *requests) intercept() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, path string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		method := path[strings.LastIndex(path, "/")+1:]
		err := invoke(ctx, path, req, reply, cc, opts...)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.n == nil {
			r.n = map[string]int{}
		}
		r.n[method]++
		if err == nil && r.lose == method {
			if r.skip--; r.skip >= 0 {
				return nil
			}
			r.lose = ""
			return status.Error(codes.Unavailable, "the test has lost the reply")
		}
		return err
	})
}

// loseReply loses the reply to a transaction, after so many others.
func (r *requests) loseReply(after int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lose, r.skip = "Txn", after
}

func (r *requests) armed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lose != ""
}

func newKey() string { return "etcdlock:" + adapter.Token() }

func name(key string) string { return "bellwether/leases/" + key }

func watch(t *testing.T, l *etcdlock.Locker, held *driver.HeldError) <-chan struct{} {
	t.Helper()
	freed, err := l.Watch(t.Context(), held)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	return freed
}

func mustStayOpen(t *testing.T, what string, freed <-chan struct{}, d time.Duration) {
	t.Helper()
	select {
	case <-freed:
		t.Fatalf("%s: woken", what)
	case <-time.After(d):
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	lockertest.Run(t, func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) })
}

func TestOneClient(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	client := newClient(t, server.Addr)
	a, b, key := etcdlock.New(client), etcdlock.New(client), newKey()
	defer a.Close()
	defer b.Close()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	leasetest.MustBeHeld(t, a, key)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	if _, err := b.Watch(t.Context(), leasetest.MustBeHeld(t, a, key)); err == nil {
		t.Error("Watch of what another Locker has seen: no error")
	}
	leasetest.Release(t, lease)
	leasetest.MustClose(t, "after the release", freed, 10*time.Second)
	leasetest.Acquire(t, b, key, time.Minute)
	leasetest.MustBeHeld(t, a, key)
}

func TestPrefix(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	l, key := newLocker(t, server.Addr), newKey()
	l.Prefix = "shop/"
	leasetest.Acquire(t, l, key, time.Minute)
	resp, err := newClient(t, server.Addr).Get(t.Context(), "shop/"+key)
	if err != nil || resp.Count != 1 {
		t.Fatalf("%v, %v; want a lease under the prefix", resp, err)
	}
	leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute) // another prefix is another key
}

func TestTTL_OverAHundredYears(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	const years = 250 * 365 * 24 * time.Hour
	lease := leasetest.Acquire(t, a, key, years)
	if limit := time.Now().Add(101 * 365 * 24 * time.Hour); leasetest.MustBeHeld(t, b, key).Until.After(limit) {
		t.Error("the lease is announced to be longer than its holder believes")
	}
	leasetest.Renew(t, lease, years)
	leasetest.Release(t, lease)
}

func TestForeignValue(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	l, client := newLocker(t, server.Addr), newClient(t, server.Addr)
	for _, v := range []string{"", "x", "x y z", "x 1", "x 1 2 3", "x 0 0", "x -1 0", " 1 0", "x 99999999999999999999 0", "x 99999999999999 0"} {
		key := newKey()
		if _, err := client.Put(t.Context(), name(key), v); err != nil {
			t.Fatal(err)
		}
		_, err := l.TryAcquire(t.Context(), key, time.Minute)
		if !errors.Is(err, driver.ErrCorrupt) || !strings.Contains(err.Error(), name(key)) {
			t.Errorf("value %q: err = %v, want ErrCorrupt, and the key", v, err)
		}
	}
}

func TestRenewed_WhileWatched(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	const ttl = 3 * time.Second
	lease := leasetest.Acquire(t, a, key, ttl)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	time.Sleep(ttl / 6)
	renewed := time.Now()
	leasetest.Renew(t, lease, ttl)
	// The watcher has the event at once, does not wake, and counts from the event, not its next look.
	mustStayOpen(t, "a renewal", freed, ttl/2)
	looked := time.Now()
	until := leasetest.MustBeHeld(t, b, key).Until
	if until.Before(renewed.Add(ttl)) {
		t.Errorf("Until of a renewed lease is %v before its end", renewed.Add(ttl).Sub(until))
	}
	if !until.Before(looked.Add(ttl)) {
		t.Errorf("Until is %v after the end of a lease whose renewal was watched", until.Sub(renewed.Add(ttl)))
	}
	// The holder dies without an event; the key is taken at Until.
	time.Sleep(time.Until(until))
	leasetest.Acquire(t, b, key, time.Minute)
	leasetest.MustBeLost(t, "Renew of a lease that was taken over", lease.Renew(t.Context(), ttl))
}

func TestSweeper_RevokedByAnother(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	a, b, client := newLocker(t, server.Addr), newLocker(t, server.Addr), newClient(t, server.Addr)
	revoke := func(key string) {
		t.Helper()
		resp, err := client.Get(t.Context(), name(key))
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatalf("%v, %v", resp, err)
		}
		if _, err := client.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
			t.Fatal(err)
		}
	}
	key, other := newKey(), newKey()
	lease, kept := leasetest.Acquire(t, a, key, time.Minute), leasetest.Acquire(t, a, other, time.Minute)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	revoke(key)
	leasetest.MustClose(t, "a deletion by the end of the etcd lease", freed, 10*time.Second)
	leasetest.MustBeLost(t, "Renew of a key that was swept up", lease.Renew(t.Context(), time.Minute))
	leasetest.MustBeLost(t, "Release of a key that was swept up", lease.Release(t.Context()))
	leasetest.MustBeLost(t, "Release of another key that was swept up", kept.Release(t.Context()))
	lease = leasetest.Acquire(t, a, key, time.Minute) // with a new etcd lease
	leasetest.MustBeHeld(t, b, key)

	// A renewal finds out too: the lease's key is attached to another Locker's sweeper.
	resp, err := client.Get(t.Context(), name(key))
	if err != nil {
		t.Fatal(err)
	}
	gone := clientv3.LeaseID(resp.Kvs[0].Lease)
	if _, err := client.Put(t.Context(), name(key), string(resp.Kvs[0].Value)); err != nil { // without a sweeper
		t.Fatal(err)
	}
	if _, err := client.Revoke(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	leasetest.Renew(t, lease, time.Minute)
	leasetest.MustBeHeld(t, b, key)
	leasetest.Release(t, lease)
}

func TestClose_KeepsWhatIsHeld(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	a, b, client := newLocker(t, server.Addr), newLocker(t, server.Addr), newClient(t, server.Addr)
	key := newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := watch(t, a, leasetest.MustBeHeld(t, a, key))
	leasetest.Acquire(t, a, newKey(), time.Second).Release(t.Context()) // on its own etcd lease
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	leasetest.MustClose(t, "Close", freed, 10*time.Second)
	leases, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(leases.Leases) != 1 {
		t.Errorf("%d etcd leases, want the one of the held key", len(leases.Leases))
	}
	held := leasetest.MustBeHeld(t, b, key)
	if _, err := a.Watch(t.Context(), leasetest.MustBeHeld(t, a, key)); err == nil {
		t.Error("Watch of a closed Locker: no error")
	}
	freed = watch(t, b, held)
	leasetest.Renew(t, lease, time.Minute) // after Close
	leasetest.Release(t, lease)            // after Close
	leasetest.MustClose(t, "the release", freed, 10*time.Second)
}

// TestCycles_LeaveNothing: a Locker has few etcd leases for any number of keys, and none after Close.
func TestCycles_LeaveNothing(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	client := newClient(t, server.Addr)
	newLocker := func(tb testing.TB) driver.Locker { return newLocker(tb, server.Addr) }
	etcdLeases := func() int {
		l, err := client.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(l.Leases)
	}
	lockertest.LeavesNothing(t, newLocker, func() map[string]int {
		k, err := client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return map[string]int{"keys": int(k.Count), "twenties of etcd leases": etcdLeases() / 20}
	})
	if n := etcdLeases(); n != 0 {
		t.Errorf("%d etcd leases are left of closed Lockers, want none", n)
	}
}

func TestNew_NoClient(t *testing.T) {
	leasetest.MustPanic(t, "etcdlock: New needs a client", func() { etcdlock.New(nil) })
}
