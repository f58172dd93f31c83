package etcdlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether/internal/leasetest"
)

// TestNoAnswer has callers without a deadline: their error is neither an answer nor a context's.
func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &oneKey{}
		l := over(t, etcd, &leases{})
		lease, err := l.TryAcquire(t.Context(), "held", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		etcd.silent = true
		for name, call := range map[string]func(context.Context) error{
			"TryAcquire": func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "free", time.Hour); return err },
			"Renew":      func(ctx context.Context) error { return lease.Renew(ctx, time.Hour) },
			"Release":    lease.Release,
		} {
			start := time.Now()
			err := call(t.Context())
			leasetest.MustBeNoAnswer(t, name, err)
			if took := time.Since(start); took != detachedTimeout {
				t.Errorf("%s gave up after %v, want %v", name, took, detachedTimeout)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: err = %v, want the context's", name, err)
			}
			cancel()
			time.Sleep(time.Minute) // the requests behind the caller end
		}
	})
}
