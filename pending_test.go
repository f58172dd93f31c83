package bellwether_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A POST while the store is silent invalidates the page in the whole fleet once the store answers.
func TestUnsafe_StoreSilent(t *testing.T) {
	for name, tt := range map[string]struct {
		kind  bellwether.Invalidation
		fault fault
	}{
		"refused":      {fault: refuse},
		"silent":       {fault: blackHole},
		"no writes":    {fault: on(refuse, "claim", "commit", "invalidate")},
		"soft, silent": {kind: bellwether.SoftInvalidation, fault: blackHole},
	} {
		inBubble(t, name, func(t *testing.T) {
			var version atomic.Int32
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "POST" {
					version.Add(1)
					return
				}
				w.Header().Set("Cache-Control", "max-age=3600")
				fmt.Fprint(w, version.Load())
			}
			store := wiredTo(memstore.New())
			o := bellwether.HTTPOptions{UnsafeInvalidation: tt.kind, OnError: func(string, error) {}, Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}}
			first, second := newSite(t, o, h), newSite(t, o, h)
			for _, s := range []*site{first, second} {
				s.wantBody(t, "0", "http://a/p")
				synctest.Wait()
			}
			store.set(tt.fault)
			first.do(request("POST", "http://a/p"))
			time.Sleep(30 * time.Second) // the outage
			calls := store.count("invalidate")
			time.Sleep(10 * time.Second)
			if n := store.count("invalidate") - calls; n > 12 {
				t.Errorf("%d tries in 10 s of the outage", n)
			}
			store.set(nil)
			time.Sleep(5 * time.Second)
			for _, s := range []*site{first, second} {
				s.wantBody(t, "1", "http://a/p")
				synctest.Wait()
			}
			calls = store.count("invalidate")
			time.Sleep(time.Minute)
			if n := store.count("invalidate") - calls; n > 0 {
				t.Errorf("%d tries after the invalidation", n)
			}
		})
	}
}
