package etcdlock_test

import (
	"os"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// The tests here have etcd lose its data: revisions begin again.

// emptiable returns an etcd and a function that restarts it without its data.
func emptiable(t *testing.T) (server *testserver.Server, empty func()) {
	data := t.TempDir() + "/data"
	server = testserver.Etcd(t, "--data-dir", data).OwnOrSkip(t)
	return server, func() {
		server.Kill()
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		server.Start()
	}
}

// TestEmptied_EqualRevision has a stranger's lease at the revision of a lost lease.
func TestEmptied_EqualRevision(t *testing.T) {
	t.Parallel()
	server, empty := emptiable(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	lost := leasetest.Acquire(t, a, key, time.Minute)
	before := leasetest.Token(t, lost)
	empty()
	stranger := leasetest.Acquire(t, b, key, time.Minute)
	if leasetest.Token(t, stranger) != before {
		t.Fatalf("the stranger's lease is at revision %d, and the lost one at %d: the test tests nothing", leasetest.Token(t, stranger), before)
	}
	leasetest.MustBeLost(t, "Renew of a lease lost with etcd's data", lost.Renew(t.Context(), time.Minute))
	leasetest.MustBeLost(t, "Release of a lease lost with etcd's data", lost.Release(t.Context()))
	leasetest.MustBeHeld(t, a, key)
	leasetest.Renew(t, stranger, time.Minute)
}

// TestEmptied_Watched has a watch from before the loss, at a revision far ahead.
func TestEmptied_Watched(t *testing.T) {
	t.Parallel()
	server, empty := emptiable(t)
	a, b, key := newLocker(t, server.Addr), newLocker(t, server.Addr), newKey()
	for range 20 {
		leasetest.Release(t, leasetest.Acquire(t, a, newKey(), time.Minute))
	}
	leasetest.Acquire(t, a, key, time.Minute)
	watch(t, b, leasetest.MustBeHeld(t, b, key))
	empty()
	lease := leasetest.Acquire(t, a, key, time.Minute)
	freed := watch(t, b, leasetest.MustBeHeld(t, b, key))
	mustStayOpen(t, "a watch of a held lease", freed, 200*time.Millisecond)
	leasetest.Release(t, lease)
	leasetest.MustClose(t, "the release", freed, 10*time.Second)
}
