package bellwether_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A setter is one process of the tests of Set, on a shared store.
type setter struct {
	*bellwether.Cache[string]
	store *wiredStore
	loads atomic.Int64
	took  atomic.Int64 // duration of a load, in nanoseconds
	deaf  atomic.Bool  // loads do not heed their contexts
}

func newSetter(t *testing.T, store *memstore.Store, locker *locallock.Locker, o bellwether.Options) *setter {
	p := &setter{}
	o.TTL, o.OnError = time.Hour, func(string, error) {}
	if store != nil {
		p.store = wiredTo(store)
		o.Fleet.Store, o.Fleet.Locker, o.Fleet.Namespace = p.store, locker, "n"
	}
	p.Cache = bellwether.New(func(ctx context.Context, _ string) (string, error) {
		n := p.loads.Add(1)
		end := ctx.Done()
		if p.deaf.Load() {
			end = nil
		}
		select {
		case <-time.After(time.Duration(p.took.Load())):
		case <-end:
			return "", context.Cause(ctx)
		}
		return fmt.Sprint("loaded ", n), nil
	}, o)
	t.Cleanup(func() { p.Close() })
	return p
}

func (p *setter) gets(t *testing.T, want string) {
	t.Helper()
	if got, err := p.Get(t.Context(), "k"); got != want || err != nil {
		t.Errorf("Get: %q, %v; want %q", got, err, want)
	}
}

func (p *setter) sets(t *testing.T, value string) {
	t.Helper()
	if err := p.Set(t.Context(), "k", value); err != nil {
		t.Fatalf("Set: %v", err)
	}
}

// Callers that wait for a load get the set value at once. The load's value reaches no caller.
func TestSet_LoadUnderWayHere(t *testing.T) {
	for _, alone := range []bool{false, true} {
		inBubble(t, fmt.Sprint("alone ", alone), func(t *testing.T) {
			var store *memstore.Store
			if !alone {
				store = memstore.New()
			}
			p := newSetter(t, store, locallock.New(), bellwether.Options{})
			p.took.Store(int64(10 * time.Second))
			p.deaf.Store(true)
			began := time.Now()
			var callers sync.WaitGroup
			for range 10 {
				callers.Go(func() { p.gets(t, "set") })
			}
			time.Sleep(time.Second)
			p.sets(t, "set")
			callers.Wait()
			if took := time.Since(began); took != time.Second {
				t.Errorf("the callers have waited for %v, want 1s", took)
			}
			for range 30 {
				p.gets(t, "set")
				time.Sleep(time.Second)
			}
			if loads := p.loads.Load(); loads != 1 || p.Stats().Flights != 0 {
				t.Errorf("%d loads, want the one before; %d flights, want none", loads, p.Stats().Flights)
			}
		})
	}
}

// A Set replaces a remembered absence and a remembered failure, and its value is fresh for TTL.
func TestSet_OverAnAbsenceOrAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := bellwether.ErrNotFound
		c := bellwether.New(func(context.Context, string) (string, error) { return "", failure },
			bellwether.Options{TTL: time.Minute, ErrorTTL: time.Hour, MaxErrorTTL: time.Hour})
		defer c.Close()
		for _, failure = range []error{bellwether.ErrNotFound, errFailed} {
			c.Get(t.Context(), "k")
			if err := c.Set(t.Context(), "k", "set"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute - 1)
			if got, err := c.Get(t.Context(), "k"); got != "set" || err != nil {
				t.Errorf("%q, %v; want the value", got, err)
			}
			time.Sleep(time.Nanosecond)
			if _, err := c.Get(t.Context(), "k"); !errors.Is(err, failure) {
				t.Errorf("after TTL: %v, want %v", err, failure)
			}
			c.Invalidate(t.Context(), "k")
		}
	})
}

// After concurrent Sets in two processes, both have the store's last commit.
func TestSet_LaterEpochStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, locker := memstore.New(), locallock.New()
		p, q := newSetter(t, store, locker, bellwether.Options{}), newSetter(t, store, locker, bellwether.Options{})
		for round := range 50 {
			var all sync.WaitGroup
			for i := range 4 {
				for _, c := range []*setter{p, q} {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						c.Set(t.Context(), "k", fmt.Sprint("set ", round, i, c == p))
					})
				}
			}
			all.Wait()
			e, err := store.Get(t.Context(), "n:k")
			if err != nil {
				t.Fatal(err)
			}
			here := fmt.Sprint("set ", round, 3, true)
			if got := string(e.Value); got != here && got != fmt.Sprint("set ", round, 3, false) {
				t.Errorf("the store has %q, want a value of the last Sets", got)
			}
			time.Sleep(time.Second)
			p.gets(t, string(e.Value))
			q.gets(t, string(e.Value))
		}
	})
}

func TestSet_StoreDown(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuse, "silent": blackHole, "claims only": on(blackHole, "commit")} {
		inBubble(t, name, func(t *testing.T) {
			p := newSetter(t, memstore.New(), locallock.New(), bellwether.Options{Sweeps: true})
			p.gets(t, "loaded 1")
			time.Sleep(time.Second) // the log has to be read again
			p.store.set(f)
			for range 5 { // until the breaker is open, and afterwards
				began := time.Now()
				if err := p.Set(t.Context(), "k", "set"); !errors.Is(err, bellwether.ErrUnavailable) {
					t.Fatalf("Set: %v, want ErrUnavailable", err)
				}
				if took := time.Since(began); took > 500*time.Millisecond {
					t.Errorf("Set took %v, more than EngineTimeout", took)
				}
			}
			if got, err := p.Get(t.Context(), "k"); got == "set" || err != nil {
				t.Errorf("Get: %q, %v; want the store's value or a load's", got, err)
			}
			p.store.set(nil)
			p.sets(t, "set again") // with the breaker open
			p.gets(t, "set again")
		})
	}
}

func TestSet_ValueNotTaken(t *testing.T) {
	broken := errors.New("broken")
	for name, of := range map[string]struct {
		o     bellwether.Options
		large bool
		want  error
	}{
		"codec":    {o: bellwether.Options{Codec: bellwether.Codec{Marshal: func(v any) ([]byte, error) { return nil, broken }}}, want: broken},
		"too much": {large: true, want: driver.ErrTooLarge},
		"size":     {o: bellwether.Options{Size: func(string, any) int { panic(broken) }}},
	} {
		inBubble(t, name, func(t *testing.T) {
			store, locker := memstore.New(), locallock.New()
			q := newSetter(t, store, locker, bellwether.Options{})
			q.gets(t, "loaded 1")
			if of.o.Codec.Marshal != nil {
				of.o.Codec.Unmarshal = func([]byte, any) error { return broken }
			}
			p := newSetter(t, store, locker, of.o)
			if of.large {
				p.store.set(on(answer(driver.ErrTooLarge), "commit"))
			}
			err := p.Set(t.Context(), "k", "set")
			if of.want != nil && !errors.Is(err, of.want) || err == nil || errors.Is(err, bellwether.ErrUnavailable) {
				t.Errorf("Set: %v, want %v", err, of.want)
			}
			if e, err := store.Get(t.Context(), "n:k"); !errors.Is(err, driver.ErrNotFound) {
				t.Errorf("the store has %q, %v; want nothing", e.Value, err)
			}
			time.Sleep(time.Second)
			q.gets(t, "loaded 2")
		})
	}
}

// A Size that ends the goroutine of a Set leaves no older value in this process.
func TestSet_SizeExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exits := false
		p := newSetter(t, nil, nil, bellwether.Options{Size: func(string, any) int {
			if exits {
				runtime.Goexit()
			}
			return 1
		}})
		p.gets(t, "loaded 1")
		exits = true
		var call sync.WaitGroup
		call.Go(func() { p.Set(t.Context(), "k", "set") })
		call.Wait()
		exits = false
		p.gets(t, "loaded 2")
	})
}

func TestSet_InALoad(t *testing.T) {
	aloneAndInAFleet(t, "", func(t *testing.T, fleet bellwether.Fleet) {
		var loads atomic.Int64
		var c *bellwether.Cache[string]
		c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
			loads.Add(1)
			return "loaded", errors.Join(c.Set(ctx, "other", "set"), c.Set(ctx, "k", "set")) // ends ctx
		}, bellwether.Options{TTL: time.Hour, Fleet: fleet})
		wantValue(t, c, "k", "set")
		wantValue(t, c, "other", "set")
		if n := loads.Load(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
	})
}

func TestSet_Closed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		p := newSetter(t, store, locallock.New(), bellwether.Options{})
		p.Close()
		if err := p.Set(t.Context(), "k", "set"); err != bellwether.ErrClosed {
			t.Errorf("Set: %v, want ErrClosed", err)
		}
		if p.store.count() > 0 {
			t.Error("the store was asked")
		}
	})
}

// A Set claims before a load, and commits while it runs. The load's failure brings no earlier value back.
func TestSet_LoadThatFailsMeanwhile(t *testing.T) {
	for _, by := range []way{push, atOnce} {
		for _, stores := range []string{"with Touch", "without Touch"} {
			for _, before := range []string{"stale", "nothing"} {
				inBubble(t, fmt.Sprint(by, ", ", stores, ", ", before), func(t *testing.T) {
					o := bellwether.Options{TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute}
					f := newFleet(t, 2, by, o)
					if by == push && stores == "with Touch" {
						f.each(func(p *process) {
							o.Fleet.Store, o.Fleet.Locker = p.store.touching(), p.locker
							p.Cache = loaderOf(t, f.origin.result, o)
						})
					}
					if before == "stale" {
						f.get(1, "k")
						time.Sleep(2 * time.Second)
					}
					f.origin.set(func(s *source) { s.fail = func(int) error { return errOrigin } })
					const name = "test:k"
					_, epoch, err := f.store.Claim(t.Context(), name)
					if err != nil {
						t.Fatal(err)
					}
					var callers sync.WaitGroup
					callers.Go(func() { f.get(1, "k") })
					time.Sleep(500 * time.Millisecond)
					e := driver.Entry{Kind: driver.KindValue, Value: []byte("set"), Epoch: epoch, TTL: time.Hour}
					if err := f.store.Commit(t.Context(), name, e); err != nil {
						t.Fatal(err)
					}
					callers.Wait()
					time.Sleep(2 * time.Second)
					if got := f.get(2, "k"); got.values["set"] != 4 {
						t.Errorf("answers %v %v, want the set value", got.count, got.failed)
					}
				})
			}
		}
	}
}

// setBehind begins a Set of the key "k". returned waits for its end.
func setBehind(t *testing.T, p *process, value string) (returned func()) {
	t.Helper()
	var set sync.WaitGroup
	set.Go(func() {
		if err := p.Set(t.Context(), "k", value); err != nil {
			t.Error(err)
		}
	})
	return set.Wait
}

// fromNow returns a function that sleeps until so many milliseconds after the call of fromNow.
func fromNow() (until func(ms time.Duration)) {
	began := time.Now()
	return func(ms time.Duration) { time.Sleep(ms*time.Millisecond - time.Since(began)) }
}

// A load with a later epoch than a Set fails. The flight reads the value from before for its failure,
// and the Set commits and returns while the reply is under way. The failure does not bring the value
// from before back, neither to the store nor to callers.
func TestSet_BesideTheLookOfAFailure(t *testing.T) {
	for _, stores := range []string{"with Touch", "without Touch"} {
		inBubble(t, stores, func(t *testing.T) {
			o := bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, StaleIfError: time.Hour, Patience: 10 * time.Millisecond}
			o.Fleet.NearTTL = 550 * time.Millisecond
			f := newFleet(t, 1, push, o)
			p := f.processes[0]
			if stores == "with Touch" {
				o.Fleet.Store, o.Fleet.Locker = p.store.touching(), p.locker
				p.Cache = loaderOf(t, f.origin.result, o)
			}
			f.get(1, "k")
			time.Sleep(10 * time.Second)
			f.origin.set(func(s *source) {
				s.build = 100 * time.Millisecond
				s.fail = func(int) error { return errOrigin }
			})
			p.store.set(on(takes(300*time.Millisecond), "commit", "touch"))
			began := time.Now()
			until := fromNow()
			returned := setBehind(t, p, "set")
			until(50)
			go p.Get(t.Context(), "k") // its load fails at 150 ms, and the look after it takes 400 ms
			until(140)
			p.store.reply.Store(int64(400 * time.Millisecond))
			until(200)
			p.store.reply.Store(0)
			returned()
			if took := time.Since(began); took != 300*time.Millisecond {
				t.Fatal("the Set took", took)
			}
			for _, at := range []time.Duration{400, 500, 560, 600, 650, 690, 1500, 5000} {
				until(at)
				if got, err := p.Get(t.Context(), "k"); got != "set" || err != nil {
					t.Errorf("Get at %d ms = %q, %v after the Set", at, got, err)
				}
			}
			time.Sleep(10 * time.Second)
		})
	}
}

// A flight claims a later epoch than a Set, looks before the Set's commit, and offers the value from
// before. The Set's own value may be untrusted at once, because the log of sweeps was read long ago.
func TestSet_OfferOfALaterFlight(t *testing.T) {
	for _, sweeps := range []bool{false, true} {
		inBubble(t, fmt.Sprint("sweeps ", sweeps), func(t *testing.T) {
			o := bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Patience: 100 * time.Millisecond, Sweeps: sweeps}
			f := newFleet(t, 1, push, o)
			p := f.processes[0]
			f.get(1, "k")
			time.Sleep(10 * time.Second)
			f.origin.set(func(s *source) { s.build = 3 * time.Second })
			p.store.set(on(takes(300*time.Millisecond), "commit"))
			returned := setBehind(t, p, "set")
			time.Sleep(100 * time.Millisecond)
			go p.Get(t.Context(), "k")
			returned()
			time.Sleep(100 * time.Millisecond)
			f.origin.set(func(s *source) {
				if s.loads != 2 {
					t.Errorf("%d loads have begun, want 2", s.loads)
				}
			})
			if got, err := p.Get(t.Context(), "k"); got != "set" || err != nil {
				t.Errorf("Get = %q, %v after the Set", got, err)
			}
			time.Sleep(10 * time.Second)
		})
	}
}

// A failure's Touch has no answer, and a Set has committed meanwhile. The flight looks again, and does
// not commit the whole value from before.
func TestSet_BesideATouchWithoutAnswer(t *testing.T) {
	for _, where := range []string{"here", "elsewhere"} {
		inBubble(t, where, func(t *testing.T) {
			o := bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, StaleIfError: time.Hour, Patience: 10 * time.Millisecond, ErrorTTL: time.Minute, MaxErrorTTL: time.Minute}
			f := newFleet(t, 2, push, o)
			f.each(func(p *process) {
				o.Fleet.Store, o.Fleet.Locker = p.store.touching(), p.locker
				p.Cache = loaderOf(t, f.origin.result, o)
			})
			p := f.processes[0]
			setter := p
			if where == "elsewhere" {
				setter = f.processes[1]
			}
			p.Get(t.Context(), "k")
			time.Sleep(10 * time.Second)
			f.origin.set(func(s *source) {
				s.build = 100 * time.Millisecond
				s.fail = func(int) error { return errOrigin }
			})
			p.store.set(func(ctx context.Context, op string) error {
				switch op {
				case "touch":
					time.Sleep(200 * time.Millisecond)
					return errRefused
				case "commit":
					if setter == p && p.store.count("commit") == 2 { // the Set's; the first was of v1
						time.Sleep(200 * time.Millisecond)
					}
				}
				return nil
			})
			if setter != p {
				setter.store.set(on(takes(200*time.Millisecond), "commit"))
			}
			returned := setBehind(t, setter, "set")
			time.Sleep(50 * time.Millisecond)
			go p.Get(t.Context(), "k") // load fails at 150 ms, Touch until 350 ms; the Set returns at 200 ms
			returned()
			time.Sleep(2 * time.Second) // above NearTTL
			for range 3 {
				if got, err := setter.Get(t.Context(), "k"); got != "set" || err != nil {
					t.Errorf("Get = %q, %v after the Set", got, err)
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// A Set commits and returns before an earlier Set has its reply. The late reply does not bring the
// earlier value back to the callers of a failed flight.
func TestSet_LateReplyOfAnEarlierSet(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		o := bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, StaleIfError: time.Hour, Patience: time.Minute, MaxWait: time.Minute,
			Size: func(string, any) int { return 1 << 30 }} // too large for the near tier
		f := newFleet(t, 1, push, o)
		p := f.processes[0]
		o.Fleet.Store, o.Fleet.Locker = p.store.touching(), p.locker
		o.Fleet.NearTTL, o.Fleet.EngineTimeout = 5*time.Second, 5*time.Second
		p.Cache = loaderOf(t, f.origin.result, o)
		f.origin.set(func(s *source) {
			s.build = 100 * time.Millisecond
			s.fail = func(int) error { return errOrigin }
		})
		until := fromNow()
		p.store.set(on(takes(50*time.Millisecond), "commit"))
		returned := setBehind(t, p, "set 1") // claims at 0; its commit arrives at 50 ms, and the reply at 450 ms
		until(10)
		go p.Get(t.Context(), "k") // claims above set 1; load fails at 110 ms
		until(20)
		p.store.reply.Store(int64(400 * time.Millisecond)) // set 1 returns at 450; the look takes until 510
		until(120)
		p.store.reply.Store(0)
		p.store.set(nil)
		if err := p.Set(t.Context(), "k", "set 2"); err != nil { // at once
			t.Error(err)
		}
		for _, at := range []time.Duration{130, 300, 440, 449, 451, 460, 480, 500, 509, 520, 600, 1000} {
			until(at)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			if got, err := p.Get(ctx, "k"); got != "set 2" {
				t.Errorf("Get at %d ms = %q, %v after set 2", at, got, err)
			}
			cancel()
		}
		returned()
		time.Sleep(10 * time.Second)
	})
}

// An invalidation while a Set waits for the store's reply counts: the value is from before it.
func TestSet_InvalidatedBeforeItsReply(t *testing.T) {
	for _, by := range []string{"here", "elsewhere"} {
		for _, flight := range []bool{false, true} {
			inBubble(t, fmt.Sprintf("%s, with a flight: %t", by, flight), func(t *testing.T) {
				f := newFleet(t, 2, notices, bellwether.Options{Fleet: bellwether.Fleet{NearTTL: time.Minute}})
				setter := f.processes[0]
				setter.store.reply.Store(int64(400 * time.Millisecond))
				returned := setBehind(t, setter, "set") // claims by 400 ms, commits at 400 ms, and returns at 800 ms
				time.Sleep(500 * time.Millisecond)
				setter.store.reply.Store(0)
				p := setter
				if by == "elsewhere" {
					p = f.processes[1]
				}
				invalidate(t, p, "k")
				if flight {
					go setter.Get(context.Background(), "k")
				}
				returned()
				if got, err := setter.Get(t.Context(), "k"); got != "v1" || err != nil {
					t.Errorf("Get = %q, %v; want the value of a load after the invalidation", got, err)
				}
			})
		}
	}
}

// An invalidation without an answer, while a Set waits for the store's reply, is still repeated.
func TestSet_InvalidatedInVainBeforeItsReply(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		f := newFleet(t, 1, notices, bellwether.Options{TTL: time.Hour})
		p := f.processes[0]
		p.store.reply.Store(int64(400 * time.Millisecond))
		returned := setBehind(t, p, "set") // returns at 800 ms
		time.Sleep(500 * time.Millisecond)
		p.store.set(on(refuse, "invalidate"))
		if err := p.Invalidate(t.Context(), "k"); !errors.Is(err, bellwether.ErrUnavailable) {
			t.Errorf("Invalidate = %v, want ErrUnavailable", err)
		}
		returned()
		p.store.set(nil)
		time.Sleep(time.Minute)
		wantValue(t, p, "k", "v1")
	})
}

// Of two Sets at one time without a store, one value stays.
func TestSet_BesideAnotherWithoutAStore(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		c := cacheOf(t, (&source{}).load, bellwether.Options{TTL: time.Hour, Size: func(_ string, v any) int {
			if v == "slow" {
				time.Sleep(time.Second)
			}
			return 1
		}})
		var sets sync.WaitGroup
		for _, v := range []string{"slow", "quick"} {
			sets.Go(func() {
				if err := c.Set(t.Context(), "k", v); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(500 * time.Millisecond)
		}
		sets.Wait()
		wantValue(t, c, "k", "slow") // it has the later epoch
	})
}

// A Set's value is there at once, during a load that ignores its context, also if the Set meets an event of an
// earlier epoch.
func TestSet_BesideEarlierEventsDuringALoad(t *testing.T) {
	for _, event := range []string{"another Set", "an invalidation elsewhere"} {
		inBubble(t, event, func(t *testing.T) {
			f := newFleet(t, 2, notices, bellwether.Options{TTL: time.Hour, MaxWait: 5 * time.Second, RebuildTimeout: 20 * time.Second})
			here, other := f.processes[0], f.processes[1]
			f.origin.set(func(s *source) { s.build, s.deaf = 15*time.Second, true })
			go here.Get(context.Background(), "k")
			time.Sleep(time.Second)
			here.store.reply.Store(int64(100 * time.Millisecond))
			returned := func() {}
			if event == "another Set" {
				returned = setBehind(t, here, "other") // claims first, and has its reply first
			}
			time.Sleep(50 * time.Millisecond)
			last := setBehind(t, here, "set")
			time.Sleep(50 * time.Millisecond)
			if event != "another Set" {
				invalidate(t, other, "k") // between the claim and the commit, after which the Set claims again
			}
			returned()
			last()
			here.store.reply.Store(0)
			wantValue(t, here, "k", "set")
			time.Sleep(time.Minute)
		})
	}
}

// A Set whose reply is late is not offered to a flight with a later epoch, whose look has not found the value.
func TestSet_LateReplyDuringALaterFlight(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		f := newFleet(t, 2, push, bellwether.Options{TTL: time.Hour})
		here := f.processes[0]
		here.store.reply.Store(int64(200 * time.Millisecond))
		returned := setBehind(t, here, "set") // commits at 200 ms, and returns at 400 ms
		time.Sleep(250 * time.Millisecond)
		here.store.reply.Store(0)
		invalidate(t, f.processes[1], "k")
		wantValue(t, here, "k", "v1")
		returned()
	})
}

// A Set's late reply does not replace the offer of a flight that has found the value of a later Set.
func TestSet_LateReplyBesideALaterOffer(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		f := newFleet(t, 2, push, nearOff(bellwether.Options{TTL: 50 * time.Millisecond, StaleWhileRevalidate: time.Hour}))
		here, until := f.processes[0], fromNow()
		here.store.reply.Store(int64(200 * time.Millisecond))
		returned := setBehind(t, here, "set") // commits at 200 ms, and returns at 400 ms
		until(250)
		here.store.reply.Store(0)
		if err := f.processes[1].Set(t.Context(), "k", "later"); err != nil {
			t.Error(err)
		}
		until(350)
		wantValue(t, here, "k", "later") // with a load of a second behind it
		returned()
		wantValue(t, here, "k", "later")
	})
}

// A sweep during a Set, whose position is older than the sweep, takes its value away.
func TestSet_SweptMeanwhile(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 1, by, bellwether.Options{TTL: time.Hour, Sweeps: true})
		p := f.processes[0]
		p.store.only = func(key string) bool { return key == "k" }
		p.store.set(on(takes(100*time.Millisecond), "commit"))
		returned := setBehind(t, p, "set")
		time.Sleep(50 * time.Millisecond)
		if err := p.InvalidateMatching(t.Context(), bellwether.Match{All: true}); err != nil {
			t.Error(err)
		}
		returned()
		wantValue(t, p, "k", "v1")
	})
}

// A Set in a process that has not read the log of sweeps is no older than the log.
func TestSet_BeforeTheLog(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		o := bellwether.Options{TTL: time.Hour, Sweeps: true}
		f := newFleet(t, 1, push, o)
		f.processes[0].Get(t.Context(), "other") // the fleet has a log
		time.Sleep(time.Second)
		p := f.processes[0]
		p.store.set(on(takes(10*time.Millisecond), "get"))
		o.Fleet.Store, o.Fleet.Locker = p.store.touching(), p.locker
		p.Cache = loaderOf(t, f.origin.result, o)
		if err := p.Set(t.Context(), "k", "set"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got, err := p.Get(t.Context(), "k"); got != "set" || err != nil {
				t.Errorf("Get = %q, %v after the Set", got, err)
			}
			time.Sleep(time.Second)
		}
	})
}

// The callers of a key with a load that goes on get the set value for as long as the store has it.
func TestSet_ValueOutlastsNearTTLBesideALoad(t *testing.T) {
	const took = 20 * time.Second
	quick := func(t *testing.T, get func(context.Context, string) (string, error), key, want string) {
		for range 10 {
			began := time.Now()
			v, err := get(t.Context(), key)
			if waited := time.Since(began); waited > 600*time.Millisecond || v != want || err != nil {
				t.Errorf("Get of %s: %q, %v after %v; want %q", key, v, err, waited, want)
			}
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(took)
	}
	inBubble(t, "deaf", func(t *testing.T) {
		p := newSetter(t, memstore.New(), locallock.New(), bellwether.Options{})
		p.took.Store(int64(took))
		p.deaf.Store(true)
		go p.Get(t.Context(), "k")
		time.Sleep(time.Second)
		p.sets(t, "set")
		quick(t, p.Get, "k", "set")
	})
	batch := func(t *testing.T, o bellwether.Options) *bellwether.Cache[string] {
		o.Fleet = bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "n"}
		c := bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
			select {
			case <-time.After(took):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			values := map[string]string{}
			for _, key := range keys {
				values[key] = "loaded"
			}
			return values, nil
		}, o)
		t.Cleanup(func() { c.Close() })
		return c
	}
	inBubble(t, "a batch's key", func(t *testing.T) {
		c := batch(t, bellwether.Options{TTL: time.Hour})
		go c.GetMany(t.Context(), []string{"a", "b"})
		time.Sleep(time.Second)
		if err := c.Set(t.Context(), "a", "set"); err != nil {
			t.Fatal(err)
		}
		quick(t, c.Get, "a", "set")
	})
	inBubble(t, "a soft sweep of a batch's stale key", func(t *testing.T) {
		c := batch(t, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: time.Hour, Sweeps: true})
		c.GetMany(t.Context(), []string{"a", "b"})
		time.Sleep(2 * time.Minute)
		c.GetMany(t.Context(), []string{"a", "b"}) // begins a load
		time.Sleep(time.Second)
		if err := c.InvalidateMatching(t.Context(), bellwether.Match{Keys: []string{"a"}, Soft: true}); err != nil {
			t.Fatal(err)
		}
		quick(t, c.Get, "a", "loaded")
	})
}

// After four invalidations a fifth load is not cancelled, and its value is void beside a later Set.
func TestSet_DuringALastLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSetter(t, nil, nil, bellwether.Options{})
		p.took.Store(int64(time.Second))
		go p.Get(t.Context(), "k")
		for range 4 {
			time.Sleep(500 * time.Millisecond)
			p.Invalidate(t.Context(), "k")
		}
		time.Sleep(500 * time.Millisecond)
		if n := p.loads.Load(); n != 5 {
			t.Fatalf("%d loads, want the fifth", n)
		}
		p.sets(t, "set")
		time.Sleep(5 * time.Second)
		p.gets(t, "set")
	})
}

// After Set has returned nil this process serves its value, also if the store has lost its data and counts from below.
func TestSet_StoreCountsFromBelow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &quiet{memstore.New()}
		for range 1000 {
			store.Claim(t.Context(), "another key")
		}
		load := func(context.Context, string) (string, error) { return "loaded", nil }
		c := cacheOf(t, load, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: store, NearTTL: time.Minute}})
		c.Get(t.Context(), "k")
		synctest.Wait()
		store.Store = memstore.New()
		if err := c.Set(t.Context(), "k", "set"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if v, err := c.Get(t.Context(), "k"); v != "set" || err != nil {
				t.Errorf("%q, %v after a Set", v, err)
			}
			time.Sleep(2 * time.Minute)
		}
	})
}

// A Set whose reply is late, from a store that counts from below, takes no later load's value away.
func TestSet_StoreCountsFromBelowBesideALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := wiredTo(memstore.New())
		for range 1000 {
			store.Claim(t.Context(), "another key")
		}
		loads := 0
		load := func(context.Context, string) (string, error) {
			loads++
			return fmt.Sprint("loaded ", loads), nil
		}
		c := cacheOf(t, load, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Store: store, NearTTL: time.Minute}})
		c.Get(t.Context(), "k")
		synctest.Wait()
		store.store = memstore.New()
		store.reply.Store(int64(100 * time.Millisecond))
		set := make(chan error)
		go func() { set <- c.Set(t.Context(), "k", "set") }()
		time.Sleep(150 * time.Millisecond) // the store has the Set's value
		store.reply.Store(0)
		c.Refresh(t.Context(), "k")
		time.Sleep(10 * time.Millisecond)
		if err := <-set; err != nil {
			t.Fatal(err)
		}
		if v, err := c.Get(t.Context(), "k"); v != "loaded 2" || err != nil {
			t.Errorf("%q, %v after the Set's reply", v, err)
		}
	})
}

// A Set takes several requests to the store. Each is answered within EngineTimeout, and all together are not.
func TestSet_SlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSetter(t, memstore.New(), locallock.New(), bellwether.Options{})
		p.store.set(takes(300 * time.Millisecond))
		for range 5 {
			p.sets(t, "set")
		}
		p.gets(t, "set")
		if stats := p.Stats(); !stats.StoreUp || stats.EngineErrors != 0 {
			t.Errorf("the store counts as up: %v, %d errors", stats.StoreUp, stats.EngineErrors)
		}
	})
}

// The end of a write's own context says nothing about the store, and the store's silence does.
func TestWrite_EndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSetter(t, memstore.New(), locallock.New(), bellwether.Options{})
		p.gets(t, "loaded 1")
		p.store.set(blackHole)
		write := func(ctx context.Context) uint64 {
			before := p.Stats().EngineErrors
			for _, err := range []error{p.Invalidate(ctx, "k"), p.Set(ctx, "k", "set")} {
				if !errors.Is(err, bellwether.ErrUnavailable) {
					t.Errorf("a write without an answer: %v", err)
				}
			}
			return p.Stats().EngineErrors - before
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if n := write(ctx); n != 0 {
			t.Errorf("%d engine errors of a caller that has left, want 0", n)
		}
		if n := write(t.Context()); n == 0 {
			t.Error("no engine errors of a silent store")
		}
	})
}
