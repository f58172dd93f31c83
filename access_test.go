package bellwether

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

type exitingClaims struct{ driver.Store }

func (exitingClaims) Claim(context.Context, string) (driver.Entry, uint64, error) {
	runtime.Goexit()
	panic("unreachable")
}

// A draft whose claim does not return leaves nothing in the memory.
func TestDraft_ClaimExits(t *testing.T) {
	c := New(func(context.Context, string) (string, error) { return "v", nil }, Options{
		TTL: time.Minute, Fleet: Fleet{Store: exitingClaims{memstore.New()}, Namespace: "n"},
	})
	defer c.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		c.engine.access("k", gate.NewBudget(time.Second)).draft(context.Background())
		t.Error("the draft has begun")
	})
	wg.Wait()
	s := c.engine.shards.of("k")
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.witnesses); n != 0 {
		t.Errorf("%d keys have witnesses, want none", n)
	}
}
