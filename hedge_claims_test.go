//go:build !race

package bellwether_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// With one hanging holder in ten rebuilds, no process hedges more than its share.
func TestHedge_Share(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, rebuilds = 4, 10_000
		f := newFleet(t, n, notices, bellwether.Options{Hedge: 3})
		for i := range rebuilds {
			key := fmt.Sprint("k", i)
			f.origin.set(func(o *source) { o.build = 100 * time.Millisecond })
			if i%10 != 9 {
				f.processes[i%n].Get(t.Context(), key)
				continue
			}
			f.origin.set(func(o *source) { o.build = time.Second })
			done := make(chan struct{})
			holder := f.processes[i/10%n]
			go func() { defer close(done); holder.Get(context.Background(), key) }()
			synctest.Wait()
			f.origin.set(func(o *source) { o.build = 100 * time.Millisecond })
			f.processes[(i/10+1)%n].Get(t.Context(), key)
			<-done
			f.each(func(p *process) {
				p.store.reset() // resets the limit of calls
				p.locker.reset()
				if s := p.Stats(); float64(s.Hedges) > .02*float64(s.Loads-s.Hedges) {
					t.Fatalf("after %d rebuilds: %d hedges of %d own loads", i, s.Hedges, s.Loads-s.Hedges)
				}
			})
		}
		if hedges := f.hedges(); hedges < rebuilds/100 {
			t.Errorf("%d hedges for %d holders that hung: the test shows nothing", hedges, rebuilds/10)
		}
	})
}
