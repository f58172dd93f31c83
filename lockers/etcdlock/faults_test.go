package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/etcdlock"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

// The tests here kill, stop and starve the server, lose its replies, and count the requests of a herd.

func TestSilentServer(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	held, released, free := newKey(), newKey(), newKey()
	lease, gone := leasetest.Acquire(t, a, held, time.Minute), leasetest.Acquire(t, a, released, time.Minute)
	seen := leasetest.MustBeHeld(t, b, held)

	server.Signal(syscall.SIGSTOP)
	young := newLocker(t, server.Addr) // has no connection and no etcd lease
	for name, call := range map[string]func(context.Context) error{
		"TryAcquire": func(ctx context.Context) error {
			_, err := a.TryAcquire(ctx, free, time.Minute)
			return err
		},
		"TryAcquire of a young Locker": func(ctx context.Context) error {
			_, err := young.TryAcquire(ctx, free, time.Minute)
			return err
		},
		"Renew": func(ctx context.Context) error { return lease.Renew(ctx, time.Minute) },
	} {
		leasetest.MustGiveUp(t, name, call)
	}
	lockertest.Hang(t, a, gone)
	start := time.Now()
	freed := watch(t, b, seen)
	if took := time.Since(start); took > time.Second {
		t.Errorf("Watch took %v: it does not wait", took)
	}
	start = time.Now()
	young.Close()
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("Close took %v", took)
	}
	server.Signal(syscall.SIGCONT)

	// Neither the abandoned acquires nor the released lease block their keys.
	for _, key := range []string{free, released} {
		eventually(t, "no lease without a holder", func() bool {
			_, err := b.TryAcquire(t.Context(), key, time.Minute)
			return err == nil
		})
	}
	// The watch begun during the outage works.
	mustStayOpen(t, "a watch of a held lease", freed, 50*time.Millisecond)
	leasetest.Release(t, lease) // after an abandoned renewal
	mustClose(t, "the release", freed)
}

func TestKilledServer_KeepsLeasesAndWatches(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	before := token(lease)

	idle := newLocker(t, server.Addr)
	leasetest.Release(t, leasetest.Acquire(t, idle, newKey(), time.Minute))

	server.Kill()
	young := newLocker(t, server.Addr)
	var wg sync.WaitGroup
	for name, call := range map[string]func(context.Context) error{
		"TryAcquire":                   func(ctx context.Context) error { _, err := a.TryAcquire(ctx, key, time.Minute); return err },
		"TryAcquire of a young Locker": func(ctx context.Context) error { _, err := young.TryAcquire(ctx, key, time.Minute); return err },
		"Renew":                        func(ctx context.Context) error { return lease.Renew(ctx, time.Minute) },
	} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s without a server: err = %v, want the context's", name, err)
			}
		})
	}
	wg.Wait()
	for what, l := range map[string]*etcdlock.Locker{"without": young, "with": idle} {
		start := time.Now()
		l.Close()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Close of a Locker %s an etcd lease took %v without a server", what, took)
		}
	}
	server.Start()

	eventually(t, "the lease is there after the restart", func() bool {
		_, err := b.TryAcquire(t.Context(), key, time.Minute)
		if err == nil {
			t.Fatal("the restart has freed the lease")
		}
		return errors.Is(err, driver.ErrHeld)
	})
	leasetest.Renew(t, lease, time.Minute) // after the restart
	if token(lease) != before {
		t.Errorf("token %d after the restart, %d before", token(lease), before)
	}
	mustStayOpen(t, "a watch over a restart", freed, 100*time.Millisecond)
	leasetest.Release(t, lease)
	mustClose(t, "the release, watched since before the restart", freed)
	if after := token(leasetest.Acquire(t, b, key, time.Minute)); after <= before {
		t.Errorf("token %d after the restart, %d before", after, before)
	}
}

// TestServerBack has a client that would wait a minute before it reconnects, as after a long outage.
func TestServerBack(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	l := newLocker(t, server.Addr, grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Minute, MaxDelay: time.Minute}}))
	try := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		lease, err := l.TryAcquire(ctx, newKey(), time.Minute)
		if err == nil {
			err = lease.Release(ctx)
		}
		return err
	}
	eventually(t, "acquire", func() bool { return try() == nil })
	server.Kill()
	for range 5 {
		if err := try(); err == nil {
			t.Fatal("an acquire without a server")
		}
	}
	server.Start()
	eventually(t, "acquire again", func() bool { return try() == nil })
}

func TestReplyLost(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	var sent requests
	a, b := newLocker(t, server.Addr, sent.intercept()), newLocker(t, server.Addr)
	leasetest.Acquire(t, a, newKey(), time.Minute) // a gets its etcd lease
	lost := func(t *testing.T) {
		t.Helper()
		if sent.armed() {
			t.Fatal("no reply was lost: the test tests nothing")
		}
	}

	t.Run("to an acquire", func(t *testing.T) {
		key := newKey()
		sent.loseReply(0)
		lease := leasetest.Acquire(t, a, key, time.Minute)
		lost(t)
		leasetest.MustBeHeld(t, b, key)
		leasetest.Renew(t, lease, time.Minute)
		leasetest.Release(t, lease)
	})
	t.Run("to a refused acquire", func(t *testing.T) {
		key := newKey()
		leasetest.Acquire(t, b, key, time.Minute)
		sent.loseReply(0)
		leasetest.MustBeHeld(t, a, key)
		lost(t)
	})
	t.Run("to a takeover", func(t *testing.T) {
		key := newKey()
		leasetest.Acquire(t, b, key, 50*time.Millisecond)
		time.Sleep(time.Until(leasetest.MustBeHeld(t, a, key).Until))
		sent.loseReply(1) // the first transaction is the look
		lease := leasetest.Acquire(t, a, key, time.Minute)
		lost(t)
		leasetest.MustBeHeld(t, b, key)
		leasetest.Release(t, lease)
	})
	t.Run("to a renewal", func(t *testing.T) {
		key := newKey()
		lease := leasetest.Acquire(t, a, key, time.Minute)
		sent.loseReply(0)
		leasetest.Renew(t, lease, time.Minute)
		lost(t)
		leasetest.Release(t, lease)
	})
	t.Run("to a release", func(t *testing.T) {
		key := newKey()
		lease := leasetest.Acquire(t, a, key, time.Minute)
		sent.loseReply(0)
		leasetest.MustBeLost(t, "Release whose first attempt has freed the lease", lease.Release(t.Context()))
		lost(t)
		leasetest.Acquire(t, b, key, time.Minute)
	})
	t.Run("with the connection", func(t *testing.T) {
		proxy := testserver.NewProxy(t, server.Addr)
		a := newLocker(t, proxy.Addr)
		leasetest.Acquire(t, a, newKey(), time.Minute)
		for range 5 {
			key := newKey()
			proxy.SwallowReplyTo(name(key))
			lease := leasetest.Acquire(t, a, key, time.Minute)
			if proxy.Armed() {
				t.Fatal("no connection was lost: the test tests nothing")
			}
			leasetest.MustBeHeld(t, b, key)
			leasetest.Release(t, lease)
		}
	})
}

func metric(t *testing.T, server *testserver.Server, name string) int {
	t.Helper()
	resp, err := http.Get("http://" + server.Addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
	}
	t.Fatalf("the server does not publish %s", name)
	return 0
}

func TestWatch_OncePerProcessAndKey(t *testing.T) {
	t.Parallel()
	const processes, waiters = 4, 1000
	server := testserver.Etcd(t).OwnOrSkip(t)
	watchers := func() int { return metric(t, server, "etcd_debugging_mvcc_watcher_total") }
	key := newKey()
	lease := leasetest.Acquire(t, newLocker(t, server.Addr), key, time.Minute)
	before := watchers()
	freed := make([]<-chan struct{}, waiters)
	var wg sync.WaitGroup
	for p := range processes {
		l := newLocker(t, server.Addr)
		for i := p; i < waiters; i += processes {
			wg.Go(func() {
				_, err := l.TryAcquire(t.Context(), key, time.Minute)
				held, ok := errors.AsType[*driver.HeldError](err)
				if !ok {
					t.Errorf("TryAcquire: err = %v, want a *HeldError", err)
					return
				}
				if freed[i], err = l.Watch(t.Context(), held); err != nil {
					t.Errorf("Watch: %v", err)
				}
			})
		}
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	eventually(t, "every process watches", func() bool { return watchers()-before >= processes })
	time.Sleep(200 * time.Millisecond)
	if n := watchers() - before; n != processes {
		t.Errorf("%d watches for %d waiters in %d processes, want one for each process", n, waiters, processes)
	}
	leasetest.Release(t, lease)
	for _, c := range freed {
		mustClose(t, "one of many", c)
	}
	eventually(t, "no watch is left", func() bool { return watchers() == before })
}

// TestWatch_FromWhatWasSeen has watches that begin long after the look, when the key has changed
// hands and back, beside an earlier watch.
func TestWatch_FromWhatWasSeen(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	first := leasetest.Acquire(t, a, key, time.Minute)
	early := leasetest.MustBeHeld(t, b, key)
	leasetest.Renew(t, first, time.Minute)
	late := leasetest.MustBeHeld(t, b, key)
	fromLate := watch(t, b, late)   // the stream begins here,
	fromEarly := watch(t, b, early) // and serves an earlier look at the same lease
	mustStayOpen(t, "the watch of an earlier look", fromEarly, 100*time.Millisecond)
	leasetest.Release(t, first)
	mustClose(t, "the release", fromLate)
	mustClose(t, "the release", fromEarly)

	second := leasetest.Acquire(t, a, key, time.Minute)
	now := watch(t, b, leasetest.MustBeHeld(t, b, key))
	mustClose(t, "a watch of the lease before, beside one of the present", watch(t, b, early))
	mustStayOpen(t, "the watch of the present lease", now, 100*time.Millisecond)
	leasetest.Release(t, second)
	mustClose(t, "the release", now)
	mustClose(t, "a watch that begins after all is over", watch(t, b, early))
}

func TestWatch_Compacted(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	a, b, client := newLocker(t, server.Addr), newLocker(t, server.Addr), newClient(t, server.Addr)
	key := newKey()
	leasetest.Acquire(t, a, key, time.Minute)
	held := leasetest.MustBeHeld(t, b, key)
	var revision int64
	for range 3 {
		resp, err := client.Put(t.Context(), newKey(), "x")
		if err != nil {
			t.Fatal(err)
		}
		revision = resp.Header.Revision
	}
	if _, err := client.Compact(t.Context(), revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	// Events since held are unknown, so the watch wakes.
	mustClose(t, "a watch whose beginning is compacted", watch(t, b, held))
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	mustStayOpen(t, "a new watch", freed, 100*time.Millisecond)
}

func TestWatch_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, a, key, time.Minute)
	watchers := func() int { return metric(t, server, "etcd_debugging_mvcc_watcher_total") }
	before := watchers()
	ctx, cancel := context.WithCancel(t.Context())
	for range 10 {
		if _, err := b.Watch(ctx, leasetest.MustBeHeld(t, b, key)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "there is a watch", func() bool { return watchers() > before })
	cancel()
	eventually(t, "etcd has ended the watch", func() bool { return watchers() == before })
}

func TestClient_Closed(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	client := newClient(t, server.Addr)
	l, key := etcdlock.New(client), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	freed := watch(t, l, leasetest.MustBeHeld(t, l, key))
	client.Close()
	mustClose(t, "the end of the client", freed)
	start := time.Now()
	_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
	for name, err := range map[string]error{
		"TryAcquire": err,
		"Renew":      lease.Renew(t.Context(), time.Minute),
		"Release":    lease.Release(t.Context()),
	} {
		if err == nil || errors.Is(err, driver.ErrLeaseLost) || errors.Is(err, context.Canceled) {
			t.Errorf("%s with a closed client: err = %v, want one that nobody takes for an answer or his context's", name, err)
		}
	}
	l.Close()
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("three calls and Close took %v with a closed client", took)
	}
}

// TestClose_WhileEtcdIsAway closes Lockers with watches, with a lost connection and with a silent one.
func TestClose_WhileEtcdIsAway(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	holder, key := newLocker(t, server.Addr), newKey()
	leasetest.Acquire(t, holder, key, time.Minute)
	for what, takeAway := range map[string]func(){
		"silent": func() { server.Signal(syscall.SIGSTOP) },
		"dead":   server.Kill,
	} {
		l := newLocker(t, server.Addr)
		freed := watch(t, l, leasetest.MustBeHeld(t, l, key))
		mustStayOpen(t, "a held lease", freed, 100*time.Millisecond)
		takeAway()
		time.Sleep(100 * time.Millisecond) // the client notices, and tries again
		start := time.Now()
		l.Close()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("etcd is %s: Close took %v", what, took)
		}
		mustClose(t, "Close", freed)
		if what == "silent" {
			server.Signal(syscall.SIGCONT)
		} else {
			server.Start()
		}
	}
}

func TestManyKeys_ShareFewEtcdLeases(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	l, client := newLocker(t, server.Addr), newClient(t, server.Addr)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if _, err := l.TryAcquire(t.Context(), fmt.Sprint("key", i), time.Minute); err != nil {
				t.Errorf("TryAcquire: %v", err)
			}
		})
	}
	wg.Wait()
	leases, err := client.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(leases.Leases) != 1 {
		t.Errorf("%d etcd leases for 200 keys taken at one time, want 1", len(leases.Leases))
	}
}
