package etcdlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestTryAcquire_NoSpace has an etcd with a used-up quota: the error has the remedy.
func TestTryAcquire_NoSpace(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--quota-backend-bytes", "1000000").OwnOrSkip(t)
	l := newLocker(t, server.Addr)
	client := newClient(t, server.Addr)
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint("room", i), strings.Repeat("x", 100_000))
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatalf("etcd is not full: %v", err)
	}
	_, err = l.TryAcquire(t.Context(), newKey(), time.Minute)
	if err == nil || errors.Is(err, driver.ErrHeld) || !errors.Is(err, rpctypes.ErrNoSpace) || !strings.Contains(err.Error(), "auto-compaction") {
		t.Errorf("TryAcquire: err = %v, want what to do about the history", err)
	}
}
