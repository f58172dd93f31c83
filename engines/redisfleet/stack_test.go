//go:build !race

package redisfleet

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// A deep engine counts the elections that moved the stack of their goroutine.
type deep struct {
	*Engine
	elections, moves atomic.Int32
}

func (d *deep) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	var here byte
	before := uintptr(unsafe.Pointer(&here))
	won, err := d.Engine.Elect(ctx, key, past, ttl)
	d.elections.Add(1)
	if uintptr(unsafe.Pointer(&here)) != before {
		d.moves.Add(1)
	}
	return won, err
}

// TestElect_FitsTheStack: an election with an entry fits into the stack that a flight has grown at its begin. A copy of
// the stack would be a twentieth of a flight's processor time.
func TestElect_FitsTheStack(t *testing.T) {
	srv := testserver.Redis(t)
	d := &deep{Engine: open(t, srv.Addr)}
	o := bellwether.Options{TTL: time.Millisecond, StaleWhileRevalidate: -1, Fleet: bellwether.Fleet{Engine: d, Namespace: "stack"}}
	o.StaleIfError = time.Hour // the entry is kept
	c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, o)
	defer c.Close()
	for range 20 {
		if _, err := c.Get(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	if n, moves := d.elections.Load(), d.moves.Load(); n < 10 || moves > 0 {
		t.Errorf("%d of %d elections moved the stack", moves, n)
	}
}
