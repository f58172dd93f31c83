package bellwether_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file tests errors whose methods panic or exit.

// A wrapping is an error whose methods panic for a nil pointer.
type wrapping struct{ inner error }

func (e *wrapping) Error() string { return "wrapped: " + e.inner.Error() }
func (e *wrapping) Unwrap() error { return e.inner }

// A harmful error calls do in one of its methods.
type harmful struct {
	method string
	do     func()
}

func (e harmful) in(method string) bool {
	if e.method == method {
		e.do()
	}
	return false
}

func (e harmful) Error() string   { e.in("Error"); return "harmful" }
func (e harmful) Is(error) bool   { return e.in("Is") }
func (e harmful) As(any) bool     { return e.in("As") }
func (e harmful) Unwrap() []error { e.in("Unwrap"); return nil }

func harms() map[string]error {
	errs := map[string]error{"nil pointer": (*wrapping)(nil), "wrapped nil pointer": fmt.Errorf("loading: %w", (*wrapping)(nil))}
	for _, method := range []string{"Error", "Is", "As", "Unwrap"} {
		errs[method+" panics"] = &harmful{method, func() { panic(method) }}
		errs[method+" exits"] = &harmful{method, runtime.Goexit}
		again := &harmful{method: method}
		again.do = func() { panic(again) }
		errs[method+" panics with itself"] = again
	}
	return errs
}

// A claiming error claims to be any error.
type claiming struct{}

func (claiming) Error() string { return "claiming" }
func (claiming) Is(error) bool { return true }

// An error that claims to be any error ends its load: with ErrNotFound, which it claims to be, or as a panic.
func TestGet_ErrorThatClaimsToBeAny(t *testing.T) {
	for how, load := range map[string]func() error{
		"returned": func() error { return claiming{} },
		"wrapped":  func() error { return fmt.Errorf("row 42: %w", claiming{}) },
		"joined":   func() error { return errors.Join(errFailed, claiming{}) },
		"panicked": func() error { panic(claiming{}) },
	} {
		inBubble(t, how, func(t *testing.T) {
			loads := 0
			c := cacheOf(t, func(context.Context, string) (string, error) {
				loads++
				return "", load()
			}, harmOptions())
			for range 2 {
				if v, err := c.Get(t.Context(), "k"); !errors.Is(err, bellwether.ErrNotFound) {
					t.Errorf("Get = %q, %v", v, err)
				}
			}
			if loads > 2 {
				t.Errorf("%d loads for two calls", loads)
			}
		})
	}
}

func wantHarm(t *testing.T, name string, err error) {
	t.Helper()
	if _, ok := errors.AsType[*bellwether.PanicError](err); !ok && !(strings.HasSuffix(name, "exits") && errors.Is(err, bellwether.ErrGoexit)) {
		t.Errorf("the error is a %T, want a PanicError or ErrGoexit", err)
	}
	_ = err.Error()
}

// eachHarm runs a test for each harmful error, in a process of its own.
func eachHarm(t *testing.T, test func(t *testing.T, name string, harm error)) {
	if !inOwnProcess(t) {
		return
	}
	for name, harm := range harms() {
		inBubbleBeside(t, name, func(t *testing.T) { test(t, name, harm) })
	}
}

func harmOptions() bellwether.Options {
	return bellwether.Options{TTL: time.Minute, Limits: bellwether.Limits{MaxRebuilds: 1}, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()}}
}

// Callers get a harmful error as a PanicError or ErrGoexit, which is remembered.
func TestGet_ErrorsThatDoHarm(t *testing.T) {
	eachHarm(t, func(t *testing.T, name string, harm error) {
		for how, load := range map[string]func() error{
			"returned": func() error { return harm },
			"panicked": func() error { panic(harm) },
		} {
			loads := 0
			c := cacheOf(t, func(context.Context, string) (string, error) {
				if loads++; loads == 1 {
					return "", load()
				}
				return "v", nil
			}, harmOptions())
			for range 2 {
				_, err := c.Get(t.Context(), "k")
				wantHarm(t, name, err)
			}
			if loads != 1 {
				t.Errorf("%s: %d loads, want the failure remembered", how, loads)
			}
			start := time.Now()
			wantValue(t, c, "other", "v")
			wantTook(t, start, 0)
		}
	})
}

// A load that panics with ErrNotFound has failed, and is not remembered as absent.
func TestGet_PanicWithNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		panics := true
		c := cacheOf(t, func(context.Context, string) (string, error) {
			if panics {
				panic(fmt.Errorf("row 42: %w", bellwether.ErrNotFound))
			}
			return "v", nil
		}, harmOptions())
		_, err := c.Get(t.Context(), "k")
		if _, ok := errors.AsType[*bellwether.PanicError](err); !ok {
			t.Errorf("err = %v, want a PanicError", err)
		}
		panics = false
		time.Sleep(10 * time.Second)
		wantValue(t, c, "k", "v") // after the pause of the failure
	})
}

// A harmful error of a batch load fails only its own keys.
func TestGetMany_ErrorsThatDoHarm(t *testing.T) {
	eachHarm(t, func(t *testing.T, name string, harm error) {
		for how, load := range map[string]func() error{
			"returned":    func() error { return harm },
			"of one key":  func() error { return &bellwether.BatchError{Errors: map[string]error{"bad": harm}} },
			"wrapping it": func() error { return errors.Join(&bellwether.BatchError{Errors: map[string]error{"bad": harm}}) },
			"panicked":    func() error { panic(harm) },
		} {
			c := batchCache(t, func(_ context.Context, keys []string) (map[string]string, error) {
				if keys[0] == "other" {
					return map[string]string{"other": "v"}, nil
				}
				if how == "panicked" {
					load()
				}
				return map[string]string{"good": "v"}, load()
			}, harmOptions())
			values, err := c.GetMany(t.Context(), []string{"bad", "good"})
			failed := failures(t, err)
			if wantHarm(t, name, failed["bad"]); how == "panicked" {
				wantHarm(t, name, failed["good"])
			} else if len(failed) != 1 || values["good"] != "v" {
				t.Errorf("%s: %q, %d failed", how, values, len(failed))
			}
			start := time.Now()
			wantValue(t, c, "other", "v")
			wantTook(t, start, 0)
		}
	})
}

// Harmful errors of engines cost callers at most their own values, and the cache recovers.
func TestEngines_ErrorsThatDoHarm(t *testing.T) {
	eachHarm(t, func(t *testing.T, name string, harm error) {
		for how, do := range map[string]fault{
			"returned": answer(harm),
			"panicked": func(context.Context, string) error { panic(harm) },
		} {
			if strings.HasSuffix(name, "exits") {
				continue // tested by TestPhases
			}
			for _, op := range []string{"get", "getmany", "claim", "commit", "invalidate", "acquire", "watch", "renew", "release"} {
				origin := &batchSource{build: 4 * time.Second}
				p := newBatchFleet(t, 1, origin, bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: time.Second}})[0]
				p.store.set(on(do, op))
				p.locker.set(on(do, op))
				values, err := p.GetMany(context.Background(), []string{"a", "b"})
				if len(values) == 2 && err != nil || len(values) < 2 && err == nil {
					t.Errorf("%s by %s: %q, %v", how, op, values, err)
				}
				p.Get(context.Background(), "c")
				p.Invalidate(context.Background(), "a")
				p.store.set(nil)
				p.locker.set(nil)
				time.Sleep(time.Minute)
				getAll(t, p, []string{"a", "b"})
			}
		}
	})
}

// A tiring error is driver.ErrFenced, and panics when it has been asked for other errors too often.
type tiring struct{ asks int }

func (*tiring) Error() string { return "tiring" }
func (e *tiring) Is(target error) bool {
	if target == driver.ErrFenced {
		return true
	}
	if e.asks--; e.asks < 0 {
		panic("Is")
	}
	return false
}

// No panic of an engine's error ends the process, however often the error has answered before.
func TestEngines_ErrorsThatTire(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	for asks := range 10 {
		for _, op := range []string{"invalidate", "release", "renew", "get"} {
			inBubbleBeside(t, fmt.Sprint(op, asks), func(t *testing.T) {
				p := newBatchFleet(t, 1, &batchSource{build: 4 * time.Second}, bellwether.Options{Fleet: bellwether.Fleet{LeaseTTL: time.Second}})[0]
				tire := on(func(context.Context, string) error { return &tiring{asks} }, op)
				p.store.set(tire)
				p.locker.set(tire)
				p.GetMany(context.Background(), []string{"a", "b"})
				p.Invalidate(context.Background(), "a")
				time.Sleep(time.Minute)
				p.store.set(nil)
				p.locker.set(nil)
				getAll(t, p, []string{"a", "b"})
			})
		}
	}
}

func TestErrors_LeavingClientsAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told string
		store := wiredTo(memstore.New())
		store.set(on(takes(time.Millisecond), "claim"))
		o := bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: store, Locker: locallock.New()}, OnError: func(_ string, err error) { told = err.Error() }}
		s := newSite(t, o, page(0, "page"))
		time.Sleep(time.Second)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Microsecond)
			s.do(request("GET", fmt.Sprint("http://a/", i), "Authorization", "x").WithContext(ctx))
			cancel()
		}
		if n := s.mw.Stats().EngineErrors; n > 0 {
			t.Errorf("%d engine errors by 100 clients that left; the last: %s", n, told)
		}
	})
}

// An asError calls do when it is asked for a PanicError.
type asError struct{ do func() }

func (e asError) Error() string { return "load failed" }
func (e asError) As(target any) bool {
	if _, ok := target.(**bellwether.PanicError); ok {
		e.do()
	}
	return false
}

// A panic in such a method is the load's failure.
func TestLoad_ErrorWhoseAsPanics(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	c := bellwether.New(func(context.Context, string) (string, error) {
		return "", asError{func() { panic("As") }}
	}, bellwether.Options{TTL: time.Minute})
	defer c.Close()
	_, err := c.Get(t.Context(), "k")
	if _, panicked := errors.AsType[*bellwether.PanicError](err); !panicked {
		t.Errorf("%v, want the panic", err)
	}
}

// A Goexit in such a method is the load's failure, and the load's slot is free.
func TestLoad_ErrorWhoseAsExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bellwether.New(func(_ context.Context, key string) (string, error) {
			if key == "k" {
				return "", asError{runtime.Goexit}
			}
			return "v", nil
		}, bellwether.Options{TTL: time.Minute, Limits: bellwether.Limits{MaxRebuilds: 1}})
		defer c.Close()
		began := time.Now()
		_, err := c.Get(t.Context(), "k")
		if took := time.Since(began); took > 0 {
			t.Errorf("the failed load is told after %v: %v", took, err)
		}
		time.Sleep(time.Hour)
		if v, err := c.Get(t.Context(), "other"); v != "v" {
			t.Errorf("an hour later, another key: %q, %v", v, err)
		}
	})
}

// A nilError is a nil pointer whose Unwrap panics.
type nilError struct{ err error }

func (e *nilError) Error() string { return "codec" }
func (e *nilError) Unwrap() error { return e.err }

// Callers get the value although the Codec's error has methods that panic, and Set does not panic.
func TestCodec_NilError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := bellwether.New(func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{
			TTL: time.Minute,
			Codec: bellwether.Codec{
				Marshal:   func(any) ([]byte, error) { return nil, (*nilError)(nil) },
				Unmarshal: func([]byte, any) error { return nil },
			},
			Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "n"},
		})
		defer c.Close()
		if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
			t.Errorf("Get: %q, %v; want the value", v, err)
		}
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("Set panics: %v", p)
			}
		}()
		c.Set(t.Context(), "k", "v")
	})
}

// A codec's error is no answer of the store, whatever its Is method claims. The process keeps its value.
func TestGet_CodecErrorThatClaimsToBeAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads, told := 0, 0
		c := cacheOf(t, func(context.Context, string) (string, error) { loads++; return "v", nil }, bellwether.Options{
			TTL:     time.Minute,
			Codec:   bellwether.Codec{Marshal: func(any) ([]byte, error) { return nil, claiming{} }, Unmarshal: json.Unmarshal},
			Fleet:   bellwether.Fleet{Store: memstore.New(), Locker: locallock.New()},
			OnError: func(string, error) { told++ },
		})
		for range 3 {
			if v, err := c.Get(t.Context(), "k"); v != "v" || err != nil {
				t.Errorf("Get: %q, %v", v, err)
			}
		}
		if loads != 1 || told != 1 || c.Stats().Fenced != 0 {
			t.Errorf("%d loads, %d errors told, %d fenced; want 1, 1, 0", loads, told, c.Stats().Fenced)
		}
	})
}

// An ErrNotFound that has no life of its own answers the processes that have waited for it, however its lifetime is told.
func TestGet_NotFoundWithoutALife(t *testing.T) {
	for _, f := range []bellwether.Freshness{
		{}, {TTL: 5 * time.Second, Age: 5 * time.Second}, {TTL: 5 * time.Second, Age: 10 * time.Second}, {TTL: time.Second, Age: 10 * time.Second, StaleIfError: time.Minute},
	} {
		everyWay(t, func(t *testing.T, by way) {
			fl := newFleet(t, 8, by, bellwether.Options{TTL: time.Minute})
			fl.origin.freshness = &f
			fl.origin.fail = func(int) error { return bellwether.ErrNotFound }
			if got := fl.get(10, "k"); got.slowest > 2*time.Second {
				t.Errorf("%+v: a caller waited for %v", f, got.slowest)
			}
			if loads, _ := fl.origin.count(); loads > 2 {
				t.Errorf("%+v: %d loads", f, loads)
			}
		})
	}
}

// With NotFoundTTL off, missing keys take no room in the near tier.
func TestGet_NotFoundTakesNoRoom(t *testing.T) {
	c := cacheOf(t, func(context.Context, string) (string, error) { return "", bellwether.ErrNotFound }, bellwether.Options{TTL: time.Hour, NotFoundTTL: -1})
	for i := range 100 {
		c.Get(t.Context(), fmt.Sprint(i))
	}
	if n := c.Stats().NearBytes; n != 0 {
		t.Errorf("%d bytes in the near tier", n)
	}
}
