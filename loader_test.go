package bellwether_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A Request has the latest value and its validator, of any process and after the windows. It has
// none after an invalidation, nor after the expiry without a validator.
func TestNewLoader_Previous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var saw string
		n := 0
		load := func(_ context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
			saw = fmt.Sprint(r.Key, r.Found, r.Previous, r.Validator)
			n++
			result := bellwether.Result[string]{Value: fmt.Sprint("v", n)}
			if r.Key == "k" {
				result.Validator = fmt.Sprint("t", n)
			}
			return result, nil
		}
		f := newFleet(t, 2, push, bellwether.Options{})
		var all []*bellwether.Cache[string]
		for _, p := range f.processes {
			all = append(all, loaderOf(t, load, bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: p.store, Locker: p.locker}}))
		}
		for _, step := range []struct {
			process int
			key     string
			before  func()
			want    string
		}{
			{0, "k", func() {}, "kfalse"},
			{1, "k", func() { time.Sleep(30 * time.Minute) }, "ktruev1t1"},
			{0, "k", func() { time.Sleep(30 * time.Minute) }, "ktruev2t2"},
			{0, "k", func() { invalidate(t, all[1], "k"); time.Sleep(time.Second) }, "kfalse"},
			{0, "k", func() { time.Sleep(2 * time.Hour) }, "kfalse"},
			{0, "plain", func() {}, "plainfalse"},
			{0, "plain", func() { time.Sleep(time.Hour) }, "plainfalse"},
		} {
			step.before()
			saw = ""
			if _, err := all[step.process].Get(t.Context(), step.key); err != nil || saw != step.want {
				t.Errorf("process %d, %s: the load saw %q, want %q; %v", step.process, step.key, saw, step.want, err)
			}
		}
	})
}

// A value with a validator is kept for an hour, also if it was stale when its load returned, or a moment later.
func TestNewLoader_PreviousThatWasNeverFresh(t *testing.T) {
	for name, test := range map[string]struct {
		freshness bellwether.Freshness
		want      bool
	}{
		"stale at once":     {bellwether.Freshness{StaleWhileRevalidate: time.Minute}, true},
		"stale by its age":  {bellwether.Freshness{Age: time.Minute, TTL: time.Minute, StaleIfError: time.Minute}, true},
		"past its windows":  {bellwether.Freshness{Age: time.Hour, TTL: time.Minute, StaleIfError: time.Minute}, false},
		"without a window":  {bellwether.Freshness{}, false},
		"fresh for a while": {bellwether.Freshness{TTL: time.Minute}, true},
	} {
		for _, shared := range []bool{false, true} {
			inBubble(t, fmt.Sprintf("%s shared=%t", name, shared), func(t *testing.T) {
				var saw []bool
				load := func(_ context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
					saw = append(saw, r.Found && r.Previous == "value" && r.Validator == "tag")
					return bellwether.Result[string]{Value: "value", Validator: "tag", Freshness: &test.freshness}, nil
				}
				o := bellwether.Options{TTL: time.Hour}
				if shared {
					o.Fleet = bellwether.Fleet{Engine: memstore.New()}
				}
				c := loaderOf(t, load, o)
				for range 2 {
					if v, err := c.Get(t.Context(), "k"); v != "value" || err != nil {
						t.Errorf("Get = %q, %v", v, err)
					}
					time.Sleep(30 * time.Minute)
				}
				if len(saw) != 2 || saw[1] != test.want {
					t.Errorf("the loads saw a Previous: %v; want false and %v", saw, test.want)
				}
			})
		}
	}
}

// NotModified prolongs the value in the fleet. The store gets the value again only if it has lost it.
func TestNewLoader_NotModified(t *testing.T) {
	for name, lost := range map[string]bool{"the store has the value": false, "the store has lost it": true} {
		inBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, push, bellwether.Options{})
			loads, sent := 0, 0
			load := func(_ context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
				if loads++; r.Found && r.Validator == "tag" {
					return bellwether.Result[string]{NotModified: true}, nil
				}
				return bellwether.Result[string]{Value: "value", Validator: "tag", Tags: []string{"org:7"}}, nil
			}
			for _, p := range f.processes {
				p.store.limit = func(e driver.Entry) error { sent += len(e.Value); return nil }
				p.Cache = loaderOf(t, load, bellwether.Options{TTL: time.Second, Fleet: bellwether.Fleet{Store: p.store.touching(), Locker: p.locker}})
			}
			for round := range 4 {
				if lost && round == 2 {
					for _, p := range f.processes {
						p.store.set(on(answer(bellwether.ErrNotFound), "touch"))
					}
				}
				for _, p := range f.processes {
					if v, err := p.Get(t.Context(), "k"); v != "value" || err != nil {
						t.Errorf("round %d: %q, %v", round, v, err)
					}
				}
				time.Sleep(1100 * time.Millisecond)
			}
			if want := map[bool]int{false: 1, true: 3}[lost] * len(`value`); loads != 4 || sent != want {
				t.Errorf("%d loads, and %d bytes sent to the store; want 4 and %d", loads, sent, want)
			}
			e, err := f.store.Get(t.Context(), "test:k")
			if err != nil || e.Validator != "tag" || len(e.Tags) != 1 || e.Tags[0] != "org:7" {
				t.Errorf("the entry has the validator %q and the tags %q, %v", e.Validator, e.Tags, err)
			}
		})
	}
}

func TestNewLoader_NothingToBeNotModified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := loaderOf(t, func(context.Context, bellwether.Request[string]) (bellwether.Result[string], error) {
			return bellwether.Result[string]{NotModified: true}, nil
		}, bellwether.Options{})
		if v, err := c.Get(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), `"k" says NotModified`) || v != "" {
			t.Errorf("Get = %q, %v", v, err)
		}
	})
}

func TestNewBatchLoader_Previous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		saw := map[string]string{}
		c := bellwether.NewBatchLoader(func(_ context.Context, requests []bellwether.Request[string]) (map[string]bellwether.Result[string], error) {
			results := map[string]bellwether.Result[string]{}
			for _, r := range requests {
				saw[r.Key] = fmt.Sprint(r.Found, r.Previous, r.Validator)
				if results[r.Key] = (bellwether.Result[string]{NotModified: true}); !r.Found {
					results[r.Key] = bellwether.Result[string]{Value: "of " + r.Key, Validator: "t"}
				}
			}
			return results, nil
		}, bellwether.Options{TTL: time.Minute})
		defer c.Close()
		for _, want := range []string{"false", "trueof at", "trueof at"} {
			values, err := c.GetMany(t.Context(), []string{"a", "b"})
			if w := strings.Replace(want, "at", "a", 1); err != nil || values["a"] != "of a" || !strings.HasPrefix(saw["a"], w) {
				t.Errorf("%v, %v; the load saw %q, want %q", values, err, saw, w)
			}
			time.Sleep(2 * time.Minute)
			if v, err := c.Get(t.Context(), "b"); v != "of b" || err != nil {
				t.Errorf("Get = %q, %v; want of b", v, err)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}
