package bellwether_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// peeks compares the result of Peek; want "" means no value.
func peeks(t *testing.T, c *bellwether.Cache[string], want string, old time.Duration) {
	t.Helper()
	got, age, ok := c.Peek("k")
	if got != want || age != old || ok != (want != "") {
		t.Errorf("Peek: %q, %v, %t; want %q, %v", got, age, ok, want, old)
	}
}

// Peek returns a value until its windows close, with its age since the return of its load.
func TestPeek_Windows(t *testing.T) {
	for name, o := range map[string]bellwether.Options{
		"stale-while-revalidate": {TTL: time.Minute, StaleWhileRevalidate: time.Minute},
		"stale-if-error":         {TTL: time.Minute, StaleIfError: time.Minute},
	} {
		inBubble(t, name, func(t *testing.T) {
			loads := 0
			c := bellwether.New(func(context.Context, string) (string, error) {
				loads++
				time.Sleep(time.Second)
				return "v", nil
			}, o)
			defer c.Close()
			peeks(t, c, "", 0)
			c.Get(t.Context(), "k")
			before := c.Stats()
			for _, age := range []time.Duration{0, time.Minute - 1, time.Minute, 2*time.Minute - 1} {
				time.Sleep(age - peekAge(c))
				peeks(t, c, "v", age)
			}
			time.Sleep(time.Nanosecond)
			peeks(t, c, "", 0)
			if after := c.Stats(); loads != 1 || before.Hits != after.Hits || before.Stale != after.Stale || before.Misses != after.Misses {
				t.Errorf("%d loads, and from %+v to %+v; want nothing to change", loads, before, after)
			}
		})
	}
}

func peekAge(c *bellwether.Cache[string]) time.Duration {
	_, age, _ := c.Peek("k")
	return age
}

func TestPeek_AgeOfAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		p, q := newSetter(t, store, locker, bellwether.Options{}), newSetter(t, store, locker, bellwether.Options{})
		p.gets(t, "loaded 1")
		time.Sleep(time.Minute)
		peeks(t, q.Cache, "", 0)
		q.gets(t, "loaded 1")
		reads := q.store.count()
		time.Sleep(time.Minute) // longer than NearTTL
		peeks(t, q.Cache, "loaded 1", 2*time.Minute)
		if n := q.store.count() - reads; n != 0 {
			t.Errorf("%d calls of the store, want none", n)
		}
		p.sets(t, "set")
		time.Sleep(time.Second)
		peeks(t, p.Cache, "set", time.Second)
	})
}

func TestPeek_NoValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error
		c := bellwether.New(func(context.Context, string) (string, error) { return "v", failure },
			bellwether.Options{TTL: time.Minute, StaleIfError: time.Hour, ErrorTTL: time.Hour, MaxErrorTTL: time.Hour})
		c.Get(t.Context(), "k")
		peeks(t, c, "v", 0)
		c.Invalidate(t.Context(), "k")
		peeks(t, c, "", 0)
		for _, failure = range []error{bellwether.ErrNotFound, errors.New("down")} {
			c.Get(t.Context(), "k")
			peeks(t, c, "", 0)
			c.Invalidate(t.Context(), "k")
		}
		failure = nil
		c.Get(t.Context(), "k")
		time.Sleep(time.Minute)
		failure = errors.New("down")
		c.Get(t.Context(), "k")
		peeks(t, c, "v", time.Minute) // a failure beside a value leaves the value
		c.Close()
		peeks(t, c, "", 0)
	})
}

func TestPeek_AllocatesNothing(t *testing.T) {
	c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{TTL: time.Hour})
	defer c.Close()
	c.Get(t.Context(), "k")
	for _, key := range []string{"k", "another"} {
		if n := testing.AllocsPerRun(1000, func() { c.Peek(key) }); n != 0 {
			t.Errorf("%s: %v allocations, want none", key, n)
		}
	}
}
