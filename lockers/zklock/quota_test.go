package zklock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/internal/leasetest"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestQuota has a Prefix whose quota has room for one lease. A further acquire costs 1 request, and its error has
// the remedy.
func TestQuota(t *testing.T) {
	server := testserver.ZooKeeper(t, "enforceQuota=true").OwnOrSkip(t)
	proxy := testserver.NewProxy(t, server.Addr)
	l := newLocker(t, proxy.Addr)
	leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute)) // creates the prefix
	conn := connect(t, server.Addr)
	quota := "/zookeeper/quota" + l.Prefix
	for _, node := range []struct{ path, data string }{
		{quota, ""},
		{quota + "/zookeeper_limits", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=3"}, // the prefix counts too
		{quota + "/zookeeper_stats", "count=1,bytes=0"},
	} {
		if _, err := conn.Create(node.path, []byte(node.data), 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	first := leasetest.Acquire(t, l, newKey(), time.Minute)
	proxy.CountRequests(":holder") // once in each request that creates a lease
	_, err := l.TryAcquire(t.Context(), newKey(), time.Minute)
	leasetest.MustBeNoAnswer(t, "TryAcquire", err)
	if err != nil && !strings.Contains(err.Error(), "setquota") {
		t.Errorf("err = %v, want the remedy", err)
	}
	if n := proxy.Requests(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	if _, err := l.Lock(t.Context(), newKey(), time.Minute); err == nil || !strings.Contains(err.Error(), "setquota") {
		t.Errorf("Lock: err = %v, want the remedy", err)
	}
	leasetest.Renew(t, first, time.Minute)
	leasetest.Release(t, first)
	leasetest.Release(t, leasetest.Acquire(t, l, newKey(), time.Minute)) // there is room again
}
