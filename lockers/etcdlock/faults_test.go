package etcdlock_test

import (
	"bufio"
	"context"
	"errors"
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

func TestSilentServer(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	a, b := newLocker(t, server.Addr), newLocker(t, server.Addr)
	held, released, free := newKey(), newKey(), newKey()
	lease, gone := leasetest.Acquire(t, a, held, time.Minute), leasetest.Acquire(t, a, released, time.Minute)
	seen := leasetest.MustBeHeld(t, b, held)
	watcher := newLocker(t, server.Addr)
	ends := watch(t, watcher, leasetest.MustBeHeld(t, watcher, held))

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
	watcher.Close()
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("two calls of Close took %v", took)
	}
	leasetest.MustClose(t, "Close", ends, 10*time.Second)
	server.Signal(syscall.SIGCONT)

	for _, key := range []string{free, released} {
		leasetest.Eventually(t, 10*time.Second, "no lease without a holder", func() bool {
			_, err := b.TryAcquire(t.Context(), key, time.Minute)
			return err == nil
		})
	}
	// The watch begun during the outage works.
	mustStayOpen(t, "a watch of a held lease", freed, 50*time.Millisecond)
	leasetest.Release(t, lease) // after an abandoned renewal
	leasetest.MustClose(t, "the release", freed, 10*time.Second)
}

func TestKilledServer_KeepsLeasesAndWatches(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t).OwnOrSkip(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	before := leasetest.Token(t, lease)

	idle := newLocker(t, server.Addr)
	leasetest.Release(t, leasetest.Acquire(t, idle, newKey(), time.Minute))
	ends := watch(t, idle, leasetest.MustBeHeld(t, idle, key))

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
	leasetest.MustClose(t, "Close", ends, 10*time.Second)
	server.Start()

	leasetest.Eventually(t, 10*time.Second, "the lease is there after the restart", func() bool {
		_, err := b.TryAcquire(t.Context(), key, time.Minute)
		if err == nil {
			t.Fatal("the restart has freed the lease")
		}
		return errors.Is(err, driver.ErrHeld)
	})
	leasetest.Renew(t, lease, time.Minute) // after the restart
	if leasetest.Token(t, lease) != before {
		t.Errorf("token %d after the restart, %d before", leasetest.Token(t, lease), before)
	}
	mustStayOpen(t, "a watch over a restart", freed, 100*time.Millisecond)
	leasetest.Release(t, lease)
	leasetest.MustClose(t, "the release, watched since before the restart", freed, 10*time.Second)
	if after := leasetest.Token(t, leasetest.Acquire(t, b, key, time.Minute)); after <= before {
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
	leasetest.Eventually(t, 10*time.Second, "acquire", func() bool { return try() == nil })
	server.Kill()
	for range 5 {
		if err := try(); err == nil {
			t.Fatal("an acquire without a server")
		}
	}
	server.Start()
	leasetest.Eventually(t, 10*time.Second, "acquire again", func() bool { return try() == nil })
}

func TestReplyLost(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	var sent requests
	a, b := newLocker(t, server.Addr, sent.intercept()), newLocker(t, server.Addr)
	leasetest.Acquire(t, a, newKey(), time.Minute) // a gets its etcd lease
	leasetest.LostReplies{
		A: a, B: b, NewKey: newKey, Armed: sent.armed, ReleaseIsLost: true,
		Lose: func(call, _ string, _ *driver.HeldError) {
			looks := 0
			if call == "takeover" {
				looks = 1
			}
			sent.loseReply(looks)
		},
	}.Run(t, "acquire", "refused acquire", "takeover", "renewal", "release")
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
	leasetest.Eventually(t, 10*time.Second, "every process watches", func() bool { return watchers()-before >= processes })
	time.Sleep(200 * time.Millisecond)
	if n := watchers() - before; n != processes {
		t.Errorf("%d watches for %d waiters in %d processes, want one for each process", n, waiters, processes)
	}
	leasetest.Release(t, lease)
	for _, c := range freed {
		leasetest.MustClose(t, "one of many", c, 10*time.Second)
	}
	leasetest.Eventually(t, 10*time.Second, "no watch is left", func() bool { return watchers() == before })
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
	leasetest.MustClose(t, "the release", fromLate, 10*time.Second)
	leasetest.MustClose(t, "the release", fromEarly, 10*time.Second)

	second := leasetest.Acquire(t, a, key, time.Minute)
	now := watch(t, b, leasetest.MustBeHeld(t, b, key))
	leasetest.MustClose(t, "a watch of the lease before, beside one of the present", watch(t, b, early), 10*time.Second)
	mustStayOpen(t, "the watch of the present lease", now, 100*time.Millisecond)
	leasetest.Release(t, second)
	leasetest.MustClose(t, "the release", now, 10*time.Second)
	leasetest.MustClose(t, "a watch that begins after all is over", watch(t, b, early), 10*time.Second)
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
	leasetest.MustClose(t, "a watch whose beginning is compacted", watch(t, b, held), 10*time.Second)
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
	leasetest.Eventually(t, 10*time.Second, "there is a watch", func() bool { return watchers() > before })
	cancel()
	leasetest.Eventually(t, 10*time.Second, "etcd has ended the watch", func() bool { return watchers() == before })
}

func TestClient_Closed(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	client := newClient(t, server.Addr)
	l, key := etcdlock.New(client), newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	freed := watch(t, l, leasetest.MustBeHeld(t, l, key))
	client.Close()
	leasetest.MustClose(t, "the end of the client", freed, 10*time.Second)
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
