package bellwether_test

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// A request that waits for the record of a page's variants, and then for its variant, counts once.
func TestCounts_RequestsForVariants(t *testing.T) {
	inPairs(t, bellwether.HTTPOptions{TTL: 2 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		w.Header().Set("Vary", "A")
		io.WriteString(w, "page "+r.Header.Get("A"))
	}, func(t *testing.T, p pair) {
		const herd = 50
		sum := func() uint64 { s := p.first.mw.Stats(); return s.Hits + s.Misses + s.Collapsed }
		for round := range 4 {
			before := sum()
			var wg sync.WaitGroup
			for range herd {
				wg.Go(func() { p.first.wantBody(t, "page 1", "http://a/p", "A", "1") })
			}
			wg.Wait()
			if n := sum() - before; n != herd {
				t.Errorf("round %d: %d requests count %d times", round, herd, n)
			}
			time.Sleep(5 * time.Second) // the page has expired, and near tiers have to ask for the record
		}
	})
}
