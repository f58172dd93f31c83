package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

type deadStore struct{ driver.Store }

var errDead = errors.New("dead")

func (deadStore) Get(context.Context, string) (driver.Entry, error) { return driver.Entry{}, errDead }
func (deadStore) Claim(context.Context, string) (driver.Entry, uint64, error) {
	return driver.Entry{}, 0, errDead
}
func (deadStore) Commit(context.Context, string, driver.Entry) error { return errDead }
func (deadStore) Invalidate(context.Context, string) error           { return errDead }

// While the store is down, the signpost of a load from before an invalidation replaces no later signpost.
func TestVary_NoOlderSignpostWhileTheStoreIsDown(t *testing.T) {
	inBubble(t, "down", func(t *testing.T) {
		var version atomic.Int32
		version.Store(1)
		h := func(w http.ResponseWriter, r *http.Request) {
			page := fmt.Sprint("version ", version.Load())
			w.Header().Set("Vary", "A")
			w.Header().Set("Cache-Control", "max-age=1")
			if r.Header.Get("Slow") != "" {
				time.Sleep(3 * time.Second)
				w.Header().Set("Vary", "A, B")
				w.Header().Set("Cache-Control", "max-age=60")
			}
			io.WriteString(w, page)
		}
		var o bellwether.HTTPOptions
		o.Fleet.Store = deadStore{memstore.New()}
		s := newSite(t, o, h)
		time.Sleep(time.Second)
		s.get("http://a/other")
		s.wantBody(t, "version 1", "http://a/p", "A", "1")
		time.Sleep(2 * time.Second)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { s.get("http://a/p", "A", "1", "Slow", "1") })
		time.Sleep(time.Second)
		version.Store(2)
		s.mw.Invalidate(t.Context(), "http://a/p")
		s.wantBody(t, "version 2", "http://a/p", "A", "2")
		time.Sleep(3 * time.Second)
		s.wantBody(t, "version 2", "http://a/p", "A", "1")
	})
}
