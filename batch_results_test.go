package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
)

// GetMany returns a key's value, its error, or nothing if neither the map nor the error has the key.
func TestGetMany_PartialResults(t *testing.T) {
	down := errors.New("shard down")
	for _, test := range []struct {
		name   string
		err    error
		failed map[string]error
		absent []string
	}{
		{"nil", nil, nil, []string{"x", "y"}},
		{"BatchError", &bellwether.BatchError{Errors: map[string]error{"x": down, "v": down}}, map[string]error{"x": down, "v": down}, []string{"y"}},
		{"not found by error", &bellwether.BatchError{Errors: map[string]error{"x": fmt.Errorf("row: %w", bellwether.ErrNotFound)}}, nil, []string{"x", "y"}},
		{"a nil error is none", &bellwether.BatchError{Errors: map[string]error{"x": nil}}, nil, []string{"x", "y"}},
		{"wrapped", fmt.Errorf("query: %w", &bellwether.BatchError{Errors: map[string]error{"x": down}}), map[string]error{"x": down, "y": down}, nil},
		{"joined", errors.Join(&bellwether.BatchError{Errors: map[string]error{"x": down}}, down), map[string]error{"x": down, "y": down}, nil},
		{"other", down, map[string]error{"x": down, "y": down}, nil},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			origin := &batchSource{do: func(_ context.Context, keys []string, values map[string]string) error {
				delete(values, "x")
				delete(values, "y")
				values["nobody asked"] = "for it"
				return test.err
			}}
			ps := newBatchFleet(t, 2, origin, bellwether.Options{ErrorTTL: time.Minute})
			keys := []string{"v", "w", "x", "y"}
			for i, p := range []*process{ps[0], ps[0], ps[1]} {
				values, err := p.GetMany(t.Context(), keys)
				failed := failures(t, err)
				for _, key := range keys {
					_, found := values[key]
					want := test.failed[key]
					remote, _ := errors.AsType[*bellwether.RemoteError](failed[key])
					switch {
					case want != nil:
						if found || !errors.Is(failed[key], want) && (remote == nil || !strings.Contains(remote.Message, want.Error())) {
							t.Errorf("call %d: %s: found %v, %v, want %v", i, key, found, failed[key], want)
						}
					case found == slices.Contains(test.absent, key) || failed[key] != nil:
						t.Errorf("call %d: %s: found %v, %v", i, key, found, failed[key])
					}
				}
				if len(values) > len(keys) {
					t.Errorf("values %q", values)
				}
			}
			origin.wantLoads(t, "v w x y") // failures and absences are remembered, by the other process too
			if _, err := ps[1].Get(t.Context(), "nobody asked"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNewBatch_GetIsABatchOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{do: func(_ context.Context, keys []string, values map[string]string) error {
			delete(values, "absent")
			if _, bad := values["bad"]; bad {
				return &bellwether.BatchError{Errors: map[string]error{"bad": errOrigin}}
			}
			return nil
		}}
		c := batchCache(t, origin.load, bellwether.Options{})
		wantValue(t, c, "a", "a v1")
		if _, err := c.Get(t.Context(), "absent"); err != bellwether.ErrNotFound {
			t.Error(err)
		}
		if _, err := c.Get(t.Context(), "bad"); err != errOrigin {
			t.Error(err)
		}
		origin.wantLoads(t, "a", "absent", "bad")
	})
}

func TestNewBatchLoader_Freshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{do: func(_ context.Context, _ []string, values map[string]string) error {
			delete(values, "absent")
			delete(values, "absent long")
			return nil
		}}
		c := bellwether.NewBatchLoader(func(ctx context.Context, requests []bellwether.Request[string]) (map[string]bellwether.Result[string], error) {
			var keys []string
			for _, r := range requests {
				keys = append(keys, r.Key)
			}
			values, err := origin.load(ctx, keys)
			results := map[string]bellwether.Result[string]{}
			for key, v := range values {
				f := bellwether.Freshness{TTL: 10 * time.Minute}
				if key == "long" {
					f.TTL = time.Hour
				}
				results[key] = bellwether.Result[string]{Value: v, Freshness: &f}
			}
			if !slices.Contains(keys, "absent long") {
				return results, err
			}
			results["absent long"] = bellwether.Result[string]{Freshness: &bellwether.Freshness{TTL: time.Hour}}
			return results, &bellwether.BatchError{Errors: map[string]error{"absent long": bellwether.ErrNotFound}}
		}, named(bellwether.Options{NotFoundTTL: 20 * time.Minute}))
		t.Cleanup(func() { c.Close() })
		keys := []string{"short", "long", "absent", "absent long"}
		for _, one := range []bool{false, true} {
			origin.set(func(o *batchSource) { o.batches = nil })
			c.Invalidate(t.Context(), keys...)
			ask := func() (loaded []string) {
				before := len(origin.loads())
				if one {
					for _, key := range keys {
						c.Get(t.Context(), key)
					}
				} else if _, err := c.GetMany(t.Context(), keys); err != nil {
					t.Error(err)
				}
				for _, keys := range origin.loads()[before:] {
					loaded = append(loaded, keys...)
				}
				return loaded
			}
			ask()
			for _, step := range []struct {
				after time.Duration
				want  []string
			}{
				{9 * time.Minute, nil},
				{2 * time.Minute, []string{"short"}},
				{8 * time.Minute, nil},
				{2 * time.Minute, []string{"short", "absent"}},
				{40 * time.Minute, []string{"short", "long", "absent", "absent long"}},
			} {
				time.Sleep(step.after)
				if got := ask(); !slices.Equal(got, step.want) {
					t.Errorf("one by one: %v: %v later %q are loaded, want %q", one, step.after, got, step.want)
				}
			}
		}
	})
}

func TestGetMany_IsABatchLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		origin := &batchSource{do: func(_ context.Context, keys []string, values map[string]string) error {
			delete(values, "absent")
			return &bellwether.BatchError{Errors: map[string]error{"bad": errOrigin}}
		}}
		behind := batchCache(t, origin.load, bellwether.Options{})
		c := batchCache(t, behind.GetMany, bellwether.Options{})
		values, err := c.GetMany(t.Context(), []string{"a", "bad", "absent"})
		if failed := failures(t, err); len(values) != 1 || values["a"] == "" || len(failed) != 1 || !errors.Is(failed["bad"], errOrigin) {
			t.Errorf("GetMany = %q, %v", values, err)
		}
		origin.wantLoads(t, "a bad absent")
	})
}

func TestBatchError(t *testing.T) {
	a, b := errors.New("a's"), fmt.Errorf("b's: %w", context.Canceled)
	e := &bellwether.BatchError{Errors: map[string]error{"b": b, "a": a}}
	if got := e.Error(); got != `bellwether: 2 keys failed, the first is "a": a's` {
		t.Error(got)
	}
	if got := (&bellwether.BatchError{Errors: map[string]error{"b": b}}).Error(); got != `bellwether: key "b": b's: context canceled` {
		t.Error(got)
	}
	if got := (&bellwether.BatchError{}).Error(); got != "bellwether: no key failed" {
		t.Error(got)
	}
	if !errors.Is(e, a) || !errors.Is(e, context.Canceled) || errors.Is(e, bellwether.ErrNotFound) || !slices.Equal(e.Unwrap(), []error{a, b}) {
		t.Error(e.Unwrap())
	}
}

// A context whose Err panics.
type panickingContext struct {
	context.Context
	armed *atomic.Bool
}

func (c panickingContext) Err() error {
	if c.armed.Load() {
		panic("from Err")
	}
	return c.Context.Err()
}

// The waits of GetMany run on goroutines of the cache, and so do the methods of the call's context.
func TestGetMany_PanicOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bellwether.New(func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "v", nil
		}, bellwether.Options{TTL: time.Minute})
		defer c.Close()
		within, cancel := context.WithCancel(t.Context())
		ctx := panickingContext{within, new(atomic.Bool)}
		go func() {
			time.Sleep(500 * time.Millisecond)
			ctx.armed.Store(true)
			cancel()
		}()
		_, err := c.GetMany(ctx, []string{"a", "b"})
		var failed *bellwether.BatchError
		if !errors.As(err, &failed) {
			t.Fatalf("GetMany: %v, want a BatchError", err)
		}
		for _, key := range []string{"a", "b"} {
			if _, is := errors.AsType[*bellwether.PanicError](failed.Errors[key]); !is {
				t.Errorf("%s: %v, want the panic", key, failed.Errors[key])
			}
		}
		time.Sleep(time.Minute)
		if v, err := c.Get(t.Context(), "a"); v != "v" || err != nil {
			t.Errorf("Get: %q, %v", v, err)
		}
	})
}

// A call whose context panics in its wait, or whose goroutine an observer ends, has left the flight, which ends
// without callers.
func TestGet_LeavesItsFlight(t *testing.T) {
	for name, o := range map[string]bellwether.Options{
		"alone":       {},
		"in a window": {BatchWindow: time.Millisecond},
		"observed": {Observers: []observe.Observer{{
			Rebuild: func(ctx context.Context, _ string) (context.Context, func(observe.Rebuild)) { return ctx, nil },
			Caller:  func(context.Context) any { runtime.Goexit(); return nil },
		}}},
	} {
		inBubble(t, name, func(t *testing.T) {
			o.TTL, o.Limits.MaxRebuilds = time.Minute, 1
			c := batchCache(t, (&batchSource{build: 10 * time.Second}).load, o)
			go c.Get(t.Context(), "other") // has the slot
			time.Sleep(time.Second)
			first, cancel := context.WithCancel(t.Context())
			var ctx context.Context = panickingDone{t.Context()}
			if o.Observers != nil { // an observer hears of a call that joins another's flight
				go c.Get(first, "k")
				time.Sleep(time.Second)
				ctx = t.Context()
			}
			var call sync.WaitGroup
			call.Go(func() {
				defer func() { recover() }()
				c.Get(ctx, "k")
				t.Error("the call has returned")
			})
			call.Wait()
			cancel()
			time.Sleep(time.Minute)
			if n := c.Stats().Loads; n != 1 {
				t.Errorf("%d loads, want none for the call that has left", n)
			}
		})
	}
}

// A context whose Done panics.
type panickingDone struct{ context.Context }

func (panickingDone) Done() <-chan struct{} { panic("from Done") }
