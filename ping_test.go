package bellwether_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

func TestPing(t *testing.T) {
	for name, of := range map[string]struct {
		store, locker fault
		words         []string
	}{
		"well":            {},
		"store down":      {store: refuse, words: []string{"reading from the store", "writing to the store", errRefused.Error()}},
		"store silent":    {store: blackHole, words: []string{"reading from the store", "writing to the store"}},
		"no claims":       {store: on(refuse, "claim"), words: []string{"writing to the store"}},
		"no commits":      {store: on(blackHole, "commit"), words: []string{"writing to the store"}},
		"store panics":    {store: ending(panics), words: []string{"reading from the store", "broken"}},
		"locker down":     {locker: refuse, words: []string{"electing by the locker"}},
		"releases silent": {locker: on(blackHole, "release"), words: []string{"electing by the locker"}},
		"both silent":     {store: blackHole, locker: blackHole, words: []string{"the store", "the locker"}},
		"held":            {locker: on(answer(driver.ErrHeld), "acquire")},
		"fenced":          {store: on(answer(driver.ErrFenced), "commit")},
	} {
		inBubble(t, name, func(t *testing.T) {
			store, locker := wiredTo(memstore.New()), wiredLocks(locallock.New())
			o := bellwether.Options{TTL: time.Minute, OnError: func(string, error) {}, Fleet: bellwether.Fleet{Store: store, Locker: locker, Namespace: "n"}}
			c := bellwether.New(func(_ context.Context, key string) (string, error) { return key, nil }, o)
			defer c.Close()
			m := bellwether.NewMiddleware(pageOptions(o))
			defer m.Close()
			time.Sleep(time.Second)
			store.set(of.store)
			locker.set(of.locker)
			for range 5 { // also with the breaker open
				for _, ping := range []func(context.Context) error{c.Ping, m.Ping} {
					time.Sleep(2 * time.Second) // until an unreleased lease has expired
					began := time.Now()
					err := ping(t.Context())
					if took := time.Since(began); took > time.Second {
						t.Errorf("Ping took %v, more than EngineTimeout", took)
					}
					if errors.Is(err, bellwether.ErrUnavailable) != (of.words != nil) || of.words == nil && err != nil {
						t.Fatalf("Ping: %v", err)
					}
					for _, word := range of.words {
						if !strings.Contains(err.Error(), word) {
							t.Errorf("%q does not say %q", err, word)
						}
					}
				}
			}
		})
	}
}

func TestPing_WithoutEngines(t *testing.T) {
	c := bellwether.New(func(_ context.Context, key string) (string, error) { return key, nil }, bellwether.Options{TTL: time.Minute})
	defer c.Close()
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v, want nil", err)
	}
}

func TestPing_EndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSetter(t, memstore.New(), locallock.New(), bellwether.Options{})
		p.store.set(blackHole)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := p.Ping(ctx); !errors.Is(err, bellwether.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Ping: %v, want ErrUnavailable and the end of ctx", err)
		}
		if took := time.Since(began); took != time.Millisecond {
			t.Errorf("Ping took %v", took)
		}
	})
}
