//go:build !race

package bellwether_test

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A probingEngine reports whether its Elect finds room on the stack of the flight.
type probingEngine struct {
	*memstore.Store
	moved chan bool
}

func (e probingEngine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	var here byte
	before := uintptr(unsafe.Pointer(&here))
	useStack(1000)
	e.moved <- before != uintptr(unsafe.Pointer(&here))
	return e.Store.Elect(ctx, key, past, ttl)
}

// useStack takes a little more than n bytes of stack, in steps like calls.
//
//go:noinline
func useStack(n int) byte {
	var frame [128]byte
	if n > len(frame) {
		frame[0] = useStack(n - len(frame))
	}
	return frame[n%len(frame)]
}

// TestElect_StackHasRoom: no election grows the stack that a flight begins with. The growth to 16 KiB
// would cost more than the flight's other work.
func TestElect_StackHasRoom(t *testing.T) {
	engine := probingEngine{memstore.New(), make(chan bool, 1)}
	c := bellwether.New(func(context.Context, string) (int, error) { return 1, nil },
		bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Engine: engine, Namespace: "test"}})
	defer c.Close()
	if _, err := c.Get(t.Context(), "key"); err != nil {
		t.Fatal(err)
	}
	if <-engine.moved {
		t.Error("an election has moved the flight's stack")
	}
}
