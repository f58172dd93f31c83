package bellwether

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
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

// lateCommits goes by the deadline of a commit's context, and returns before the context's timer has fired.
type lateCommits struct{ driver.Store }

func (lateCommits) Commit(context.Context, string, driver.Entry) error { return os.ErrDeadlineExceeded }

// dueContext has a deadline that has passed, and a timer that has not fired yet.
type dueContext struct{ context.Context }

func (dueContext) Deadline() (time.Time, bool) { return time.Now(), true }

// A commit that ends with its client's deadline says nothing about the store. A store that takes no commits has each
// flight load without a lease.
func TestDraft_CommitEndsWithTheCaller(t *testing.T) {
	c := New(func(context.Context, string) (string, error) { return "v", nil }, Options{
		TTL: time.Minute, Fleet: Fleet{Store: lateCommits{memstore.New()}, Namespace: "n"},
	})
	defer c.Close()
	e := c.engine
	fail := func(ctx context.Context) bool {
		for _, key := range []string{"a", "b", "c"} {
			e.put(ctx, key, "v", e.windows, 0, nil)
		}
		return e.commits.Fail(e.clock.Now())
	}
	if fail(dueContext{t.Context()}) {
		t.Error("the commits of callers whose time was up count as the store's failures")
	}
	if !fail(t.Context()) {
		t.Error("the store's own failures do not count")
	}
}

// leavingCommits has a flight whose last caller leaves during each commit.
type leavingCommits struct {
	driver.Store
	leave context.CancelFunc
}

func (s *leavingCommits) Commit(ctx context.Context, _ string, _ driver.Entry) error {
	s.leave()
	return ctx.Err()
}

// A probe that ends with its flight, as when the last caller leaves, says nothing about the store.
func TestProbe_EndsWithTheFlight(t *testing.T) {
	store := &leavingCommits{Store: memstore.New()}
	c := New(func(context.Context, string) (string, error) { return "v", nil }, Options{
		TTL: time.Minute, Fleet: Fleet{Store: store, Namespace: "n"},
	})
	defer c.Close()
	e := c.engine
	for range gate.Trips {
		var ctx context.Context
		ctx, store.leave = context.WithCancel(t.Context())
		(&run{flight: &flight{storeKey: storeKey{"k", e, gate.NewBudget(time.Second)}}}).probe(ctx)
	}
	if e.commits.Fail(e.clock.Now()) {
		t.Error("the probes of flights that ended count as the store's failures")
	}
}

// A value over another item does not replace what has come later, also elsewhere.
func TestPut_OverAnItemThatIsGone(t *testing.T) {
	for name, meanwhile := range map[string]func(ctx context.Context, store driver.Store, key string) error{
		"invalidated": func(ctx context.Context, store driver.Store, key string) error { return store.Invalidate(ctx, key) },
		"set": func(ctx context.Context, store driver.Store, key string) error {
			_, err := driver.Set(ctx, store, key, driver.Entry{Kind: driver.KindValue, TTL: time.Minute, Value: []byte("later")})
			return err
		},
		"nothing": nil,
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New()
			c := New(func(context.Context, string) (string, error) { return "loaded", nil }, Options{
				TTL: time.Minute, Fleet: Fleet{Store: store, Namespace: "n"},
			})
			defer c.Close()
			e, key := c.engine, c.engine.engineKey("k")
			e.put(t.Context(), "k", "before", e.windows, 0, nil)
			over, _ := e.near.Get("k")
			want := "after"
			if meanwhile != nil {
				if err := meanwhile(t.Context(), store, key); err != nil {
					t.Fatal(err)
				}
				want = map[string]string{"set": "later", "invalidated": "loaded"}[name]
			}
			e.put(t.Context(), "k", "after", e.windows, 0, over)
			time.Sleep(2 * time.Second) // longer than NearTTL
			if v, err := c.Get(t.Context(), "k"); v != want || err != nil {
				t.Errorf("%s: Get = %q, %v; want %q", name, v, err, want)
			}
		})
	}
}

// A value that a draft has made under a mark stays in this process while the mark is there, as a flight's does.
func TestDraft_UnderAMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		loads := 0
		c := New(func(context.Context, string) (string, error) { loads++; return "loaded", nil }, Options{
			TTL: time.Minute, Fleet: Fleet{Store: store, Namespace: "n", NearTTL: time.Second},
		})
		defer c.Close()
		e := c.engine
		if _, err := driver.Set(t.Context(), store, e.engineKey("k"), driver.Entry{Kind: driver.KindUnshared, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		a := e.access("k", gate.NewBudget(time.Second))
		a.Find(t.Context())
		d, _ := a.draft(t.Context())
		defer d.End()
		d.keep(t.Context(), "drafted", e.windows, e.clock.Now())
		for range 3 {
			if v, err := c.Get(t.Context(), "k"); v != "drafted" || err != nil || loads != 0 {
				t.Fatalf("Get = %q, %v after %d loads, want the draft's value", v, err, loads)
			}
			time.Sleep(2 * time.Second)
		}
	})
}
