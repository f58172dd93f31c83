package bellwether_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// a32Count counts the calls of a memstore that is store and locker at once, and keeps all
// that memstore is: BatchGetter, Notifier, Fencer, Toucher.
type a32Count struct {
	*memstore.Store
	many, elects atomic.Int64
	trip         time.Duration // of each request
}

func (s *a32Count) GetMany(ctx context.Context, keys []string, each func(int, bellwether.Entry, error)) {
	if s.many.Add(1) > 20_000 {
		<-ctx.Done() // it is a loop: let the test end
		return
	}
	time.Sleep(s.trip)
	s.Store.GetMany(ctx, keys, each)
}

func (s *a32Count) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (bellwether.Election, error) {
	s.elects.Add(1)
	time.Sleep(s.trip)
	return s.Store.Elect(ctx, key, past, ttl)
}

func a32Page(t *testing.T, h http.Handler, url string) (*httptest.ResponseRecorder, time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	w := httptest.NewRecorder()
	began := time.Now()
	h.ServeHTTP(w, httptest.NewRequest("GET", url, nil).WithContext(ctx))
	return w, time.Since(began)
}

// A page is loaded although the near tier is off, with memstore as store and locker.
func TestAttack32_NearOffElectorHTTP(t *testing.T) {
	s := &a32Count{Store: memstore.New(), trip: 100 * time.Microsecond}
	m := bellwether.NewMiddleware(bellwether.HTTPOptions{Options: bellwether.Options{Store: s, Locker: s, NearTTL: -1, MaxWait: 2 * time.Second}})
	defer m.Close()
	var loads atomic.Int32
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		loads.Add(1)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Write([]byte("page"))
	}))
	w, took := a32Page(t, h, "http://site.test/a")
	t.Logf("status %d after %v, %d loads, %d GetMany, %d Elect", w.Code, took, loads.Load(), s.many.Load(), s.elects.Load())
	if w.Code != 200 || loads.Load() != 1 || s.many.Load() > 10 {
		t.Error("a miss of a cache whose near tier is off asks the store over and over, and is never elected")
	}
}

// A key that is invalidated during its load is loaded once more.
func TestAttack32_InvalidatedElectorHTTP(t *testing.T) {
	s := &a32Count{Store: memstore.New(), trip: 100 * time.Microsecond}
	m := bellwether.NewMiddleware(bellwether.HTTPOptions{Options: bellwether.Options{Store: s, Locker: s, MaxWait: 2 * time.Second}})
	defer m.Close()
	var loads atomic.Int32
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loads.Add(1) == 1 {
			if err := m.Invalidate(context.Background(), "http://site.test/a"); err != nil {
				t.Error(err)
			}
		}
		w.Header().Set("Cache-Control", "max-age=60")
		w.Write([]byte("page"))
	}))
	w, took := a32Page(t, h, "http://site.test/a")
	t.Logf("status %d after %v, %d loads, %d GetMany, %d Elect", w.Code, took, loads.Load(), s.many.Load(), s.elects.Load())
	if w.Code != 200 || loads.Load() != 2 || s.many.Load() > 20 {
		t.Error("a miss whose key was invalidated during its load asks the store over and over, and is never elected")
	}
}
