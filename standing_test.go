package bellwether_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

type typedNilLease struct{ driver.Lease }

// carelessLocker returns a nil pointer as its lease beside an error, as a locker does that converts the result of a
// function with a type of its own.
type carelessLocker struct{ calls int }

func (l *carelessLocker) TryAcquire(_ context.Context, key string, _ time.Duration) (driver.Lease, error) {
	var none *typedNilLease
	if l.calls++; l.calls == 1 {
		return none, &driver.HeldError{Key: key, Until: time.Now().Add(5 * time.Second)}
	}
	return none, driver.ErrCorrupt
}

// A lease beside an error is none: the flight waits for the holder.
func TestElect_LeaseBesideAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var loaded time.Duration
		c := bellwether.New(func(context.Context, string) (int, error) { loaded = time.Since(begun); return 1, nil },
			bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: &carelessLocker{}, Namespace: "test"}})
		defer c.Close()
		if _, err := c.Get(t.Context(), "key"); err != nil {
			t.Error(err)
		}
		if loaded < time.Second/2 {
			t.Errorf("loaded after %v, beside the holder", loaded)
		}
	})
}
