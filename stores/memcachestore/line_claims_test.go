//go:build !race

package memcachestore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestGetMany_LongReplies reads 50 MB in the time for 30 MB: values that have come are handed over.
func TestGetMany_LongReplies(t *testing.T) {
	srv := testserver.Memcached(t, "-m", "256")
	proxy := testserver.NewProxy(t, srv.Addr)
	near, far := open(t, "test:", srv.Addr), open(t, "test:", proxy.Addr)
	value := strings.Repeat("v", 50_000)
	var keys []string
	for i := range 1000 {
		keys = append(keys, fmt.Sprint("key ", i))
		put(t, near, keys[i], value, time.Hour)
	}
	if _, err := far.Get(t.Context(), keys[0]); err != nil { // opens the connection
		t.Fatal(err)
	}
	proxy.SetRate(60_000_000)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var found atomic.Int64
	far.GetMany(ctx, keys, func(_ int, e driver.Entry, err error) {
		if err == nil && len(e.Value) == len(value) {
			found.Add(1)
		}
	})
	t.Logf("%d of %d values in half a second", found.Load(), len(keys))
	if n := found.Load(); n < 100 {
		t.Errorf("%d values in half a second, want 100 at least", n)
	}
}
