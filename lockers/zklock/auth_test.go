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
	"github.com/bellwether-go/bellwether/lockers/lockertest"
	"github.com/bellwether-go/bellwether/lockers/zklock"
)

// ours has a Locker authenticate, and restrict its nodes to clients with the same credentials.
func ours(l *zklock.Locker) *zklock.Locker {
	l.AuthScheme, l.Auth = "digest", []byte("bellwether:secret")
	l.ACL = zk.DigestACL(zk.PermAll, "bellwether", "secret")
	return l
}

// TestConformance_Auth has Lockers that authenticate, below their own node.
func TestConformance_Auth(t *testing.T) {
	server := shared(t)
	prefix := "/" + newKey()
	lockertest.Run(t, func(tb testing.TB) driver.Locker {
		l := ours(newLocker(tb, server.Addr))
		l.Prefix = prefix
		return l
	})
}

// TestAuth_Others has a client without the credentials meet a lease: it can neither read nor remove
// it. The credentials outlast a lost connection.
func TestAuth_Others(t *testing.T) {
	server := shared(t)
	proxy := testserver.NewProxy(t, server.Addr)
	l, key := ours(newLocker(t, proxy.Addr)), newKey()
	l.Prefix = "/" + newKey()
	lease := leasetest.Acquire(t, l, key, time.Minute)
	stranger := connect(t, server.Addr)
	node := l.Prefix + "/" + key + ":lease"
	if _, _, err := stranger.Get(node); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("reading a lease without credentials: err = %v, want %v", err, zk.ErrNoAuth)
	}
	if err := stranger.Delete(node, -1); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("deleting a lease without credentials: err = %v, want %v", err, zk.ErrNoAuth)
	}
	other := newLocker(t, server.Addr)
	other.Prefix = l.Prefix
	if _, err := other.TryAcquire(t.Context(), newKey(), time.Minute); !errors.Is(err, zk.ErrNoAuth) || !strings.Contains(err.Error(), "AuthScheme") {
		t.Errorf("TryAcquire of a Locker without credentials: err = %v, want %v and the remedy", err, zk.ErrNoAuth)
	}

	proxy.Set(testserver.Reset)
	proxy.Set(testserver.NoFault)
	leasetest.Renew(t, lease, time.Minute) // over another connection
	leasetest.Release(t, lease)            // over another connection
}

// TestAuth_Refused has credentials of an unknown kind: calls fail, and the Locker connects about once a second.
func TestAuth_Refused(t *testing.T) {
	proxy := testserver.NewProxy(t, shared(t).Addr)
	l := newLocker(t, proxy.Addr)
	l.AuthScheme, l.Auth = "unknown", []byte("secret")
	if _, err := l.TryAcquire(t.Context(), newKey(), time.Minute); !errors.Is(err, zk.ErrAuthFailed) {
		t.Errorf("TryAcquire: err = %v, want %v", err, zk.ErrAuthFailed)
	}
	before := proxy.Connections()
	time.Sleep(2500 * time.Millisecond)
	if n := proxy.Connections() - before; n > 5 {
		t.Errorf("%d connections in 2.5 s, want about one a second", n)
	}
}

// TestAuth_Enforced has a ZooKeeper that serves only clients with credentials.
func TestAuth_Enforced(t *testing.T) {
	server := testserver.ZooKeeper(t, "enforce.auth.enabled=true", "enforce.auth.schemes=digest").OwnOrSkip(t)
	if _, err := newLocker(t, server.Addr).TryAcquire(t.Context(), newKey(), time.Minute); err == nil || !strings.Contains(err.Error(), "AuthScheme") {
		t.Errorf("TryAcquire of a Locker without credentials: err = %v, want the remedy", err)
	}
	leasetest.Release(t, leasetest.Acquire(t, ours(newLocker(t, server.Addr)), newKey(), time.Minute))
}
