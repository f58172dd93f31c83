//go:build !race

package gate

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/observe"
)

// TestPatience_CrowdedProcess has an answer wait behind a hundred other goroutines per processor, again and again, for
// longer than the limit. The race detector shuffles the goroutines, so the test could not fail under it.
func TestPatience_CrowdedProcess(t *testing.T) {
	var crowd sync.WaitGroup
	defer crowd.Wait()
	var enough atomic.Bool
	defer enough.Store(true)
	for range 100 * runtime.GOMAXPROCS(0) {
		crowd.Go(func() {
			for !enough.Load() {
				for began := time.Now(); time.Since(began) < time.Millisecond; {
				}
				runtime.Gosched()
			}
		})
	}
	err := AskErr(t.Context(), New(timeout, func(_, _ observe.BreakerState) {}), "k", NewBudget(timeout), func(ctx context.Context) error {
		for began := time.Now(); time.Since(began) < timeout*3/2; {
			runtime.Gosched()
		}
		return ctx.Err()
	})
	if err != nil {
		t.Errorf("an answer after one and a half limits in a crowded process: %v", err)
	}
}
