package bellwether_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// slowly answers with the number of its call, the header at once and the rest
// after 5 s.
func slowly(calls *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		w.Header().Set("Cache-Control", "max-age=3600")
		w.(http.Flusher).Flush()
		time.Sleep(5 * time.Second)
		fmt.Fprint(w, n)
	}
}

// A request that does not take the response that is being written gets the next
// one, also if the store refuses the first.
func TestHTTP_RefusedWhileOthersRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		store := memstore.New()
		s := newSite(t, bellwether.HTTPOptions{Options: bellwether.Options{Store: quiet{store}}}, slowly(&calls))
		go s.get("http://example.com/")
		time.Sleep(time.Second)
		time.AfterFunc(time.Second, func() { store.Invalidate(t.Context(), "example.com/") })
		if w := s.get("http://example.com/", "Cache-Control", "no-cache"); w.Body.String() != "2" {
			t.Errorf("%d %q, want 2", w.Code, w.Body)
		}
	})
}
