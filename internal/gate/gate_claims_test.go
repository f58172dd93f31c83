//go:build !race

package gate

import (
	"context"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/observe"
)

// Ask costs a time limit and the report. A call that waits for its turn also has a place and a channel.
func TestAsk_Allocations(t *testing.T) {
	ctx, b, o := t.Context(), New(time.Second, func(_, _ observe.BreakerState) {}), NewBudget(time.Second)
	call := func(ctx context.Context) (struct{}, error) { return struct{}{}, ctx.Err() }
	floor := testing.AllocsPerRun(1000, func() {
		limited, cancel := context.WithTimeout(ctx, o.Left())
		defer cancel()
		call(limited)
	})
	for name, f := range map[string]func(context.Context, *Gate, string, *Budget, func(context.Context) (struct{}, error)) (struct{}, error){
		"Ask": Ask[struct{}], "AskInTurn": AskInTurn[struct{}],
	} {
		n := testing.AllocsPerRun(1000, func() {
			if _, err := f(ctx, b, "k", o, call); err != nil {
				t.Error(err)
			}
		})
		t.Logf("%s: %.0f allocations, of which %.0f are a time-out's", name, n, floor)
		if n > floor+2 { // a patience is one more than a time-out, and the breaker needs one
			t.Errorf("%s: %.0f allocations, want %.0f for a time-out and 2 at most", name, n, floor)
		}
	}
}
