package bellwether_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A notice ends a flight's wait for a slot, without an election or a look.
func TestNotice_EndsTheWaitForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{Limits: bellwether.Limits{MaxRebuilds: 1}})
		f.origin.build = time.Minute
		var wg sync.WaitGroup
		wg.Go(func() { f.processes[0].Get(t.Context(), "blocks the slot") })
		synctest.Wait()
		const build = 700 * time.Millisecond // before the first look without a notice
		f.origin.set(func(o *source) { o.build = build })
		got := f.get(1, "k")
		if len(got.failed) > 0 || got.slowest != build {
			t.Errorf("the slowest caller waited %v for a load of %v: %v", got.slowest, build, got.failed)
		}
		if p := f.processes[0]; p.store.count("get") != 2 || p.locker.count("acquire") != 1 {
			t.Errorf("the process without a slot: %v, %v; want a look for each key, and one election", p.store.calls, p.locker.calls)
		}
		wg.Wait()
		f.wantLoads(t, 2)
	})
}

// A notice ends a flight's wait for its turn at the locker, without an election.
func TestNotice_OvertakesAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const turns = 16 // initial number of concurrent calls, see turns.go
		f := newFleet(t, 2, notices, bellwether.Options{Fleet: bellwether.Fleet{EngineTimeout: 10 * time.Second, NearTTL: time.Minute}})
		crowded := f.processes[0]
		crowded.locker.set(takes(time.Second))
		var wg sync.WaitGroup
		for i := range turns {
			wg.Go(func() { crowded.Get(t.Context(), fmt.Sprint("ahead", i)) })
		}
		synctest.Wait()
		f.origin.set(func(o *source) { o.build = 100 * time.Millisecond })
		if got := f.get(1, "k"); len(got.failed) > 0 || got.values["v1"] != 2 {
			t.Errorf("%v, %v", got.values, got.failed)
		}
		wg.Wait()
		if n := crowded.locker.count("acquire"); n != turns {
			t.Errorf("stood for %d elections, want %d: the notice brings the other value", n, turns)
		}
		f.wantLoads(t, turns+1)
	})
}

// Notices update the near tiers of other processes at once, before NearTTL.
func TestNotice_NearTiersFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, notices, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Minute}})
		f.get(1, "k")
		invalidate(t, f.processes[0], "k")
		synctest.Wait()
		wantValue(t, f.processes[1], "k", "v2") // after an invalidation in another process

		// A later value replaces an earlier value in the near tier, without a look.
		f.get(1, "k")
		reads := f.processes[2].store.count("get")
		driver.Set(t.Context(), f.store, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte("later"), TTL: time.Hour})
		synctest.Wait()
		wantValue(t, f.processes[2], "k", "later") // after a rebuild in another process
		if n := f.processes[2].store.count("get"); n != reads {
			t.Errorf("the store was read %d times for the notice's value", n-reads)
		}
		// A process that has not asked for the key does not keep the value.
		f.processes[2].store.set(nil)
		f.processes[0].Get(t.Context(), "another")
		synctest.Wait()
		if s := f.processes[1].Stats(); s.NearBytes > f.processes[2].Stats().NearBytes {
			t.Errorf("near tiers of %d and %d bytes: one has kept the value of a notice", s.NearBytes, f.processes[2].Stats().NearBytes)
		}
	})
}

func TestNotice_EndsLoadsThatBeganBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{})
		time.AfterFunc(500*time.Millisecond, func() { f.processes[1].Invalidate(context.Background(), "k") })
		start := time.Now()
		v, err := f.processes[0].Get(t.Context(), "k")
		if took := time.Since(start); v != "v2" || err != nil || took > 1600*time.Millisecond {
			t.Errorf("got %q, %v after %v, want v2 after 1.5s", v, err, took)
		}

		// The notice comes late, during the next load.
		f.processes[0].store.set(on(takes(700*time.Millisecond), "notice"))
		before, _ := f.origin.count()
		f.processes[1].Invalidate(t.Context(), "other")
		start = time.Now()
		_, err = f.processes[0].Get(t.Context(), "other")
		if took := time.Since(start); err != nil || took != time.Second {
			t.Errorf("%v after %v, want 1s", err, took)
		}
		if loads, _ := f.origin.count(); loads != before+1 {
			t.Errorf("%d loads, want 1", loads-before)
		}
		synctest.Wait()
		time.Sleep(time.Second)
	})
}

// A stale value that is invalidated between a flight's look and its claim is not served during the load.
func TestInvalidate_BetweenLookAndClaim(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		if by == atOnce {
			return // one request does both
		}
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Second, StaleWhileRevalidate: time.Hour, Fleet: bellwether.Fleet{NearTTL: time.Minute}, MaxWait: time.Minute})
		a, b := f.processes[0], f.processes[1]
		f.get(1, "k")
		time.Sleep(2 * time.Minute)
		a.locker.set(on(takes(100*time.Millisecond), "acquire"))
		a.store.set(on(takes(200*time.Millisecond), "notice"))
		if v, _ := a.Get(t.Context(), "k"); v != "v1" {
			t.Fatalf("%q, want the stale v1", v)
		}
		time.Sleep(50 * time.Millisecond)
		invalidate(t, b, "k")
		for range 3 { // after the claim, before and after the notice
			time.Sleep(75 * time.Millisecond)
			if v, _ := a.Get(t.Context(), "k"); v != "v2" {
				t.Errorf("%q, want v2", v)
			}
		}
	})
}

// A notice is not trusted if it comes so late that its value may be invalidated.
func TestNotice_Late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, notices, bellwether.Options{Fleet: bellwether.Fleet{NearTTL: time.Second}, MaxWait: time.Minute})
		late := f.processes[2]
		resume := make(chan struct{})
		late.store.set(on(func(context.Context, string) error { <-resume; return nil }, "notice"))
		f.processes[0].Get(t.Context(), "k") // v1
		f.processes[1].Invalidate(t.Context(), "k")
		go f.processes[0].Get(t.Context(), "k") // v2, for which late waits
		time.Sleep(100 * time.Millisecond)
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		done := make(chan string)
		go func() {
			v, _ := late.Get(context.Background(), "k")
			done <- v
		}()
		time.Sleep(100 * time.Millisecond)
		// v2 is made and invalidated; then all notices reach late at once.
		time.Sleep(time.Second)
		f.processes[1].Invalidate(t.Context(), "k")
		go f.processes[1].Get(context.Background(), "k")
		time.Sleep(2 * time.Second)
		close(resume)
		if v := <-done; v == "v1" {
			t.Errorf("a caller that asked after v1 was invalidated got it")
		}
		synctest.Wait()
		start := time.Now()
		if v, _ := late.Get(t.Context(), "k"); version(v) < 3 && time.Since(start) == 0 {
			t.Errorf("got %s, invalidated 3 s ago", v)
		}
	})
}

// A late notice does not bring back a value that its own process has invalidated.
func TestNotice_AfterAnInvalidationHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{})
		other, here := f.processes[0], f.processes[1]
		here.store.set(on(takes(300*time.Millisecond), "notice"))
		other.Get(t.Context(), "k") // v1, whose notice arrives here at 1.3 s
		time.Sleep(100 * time.Millisecond)
		invalidate(t, here, "k")
		synctest.Wait()                         // other hears of it
		go other.Get(context.Background(), "k") // v2
		time.Sleep(50 * time.Millisecond)
		wantValue(t, here, "k", "v2") // v1 was invalidated by this process before the call
		if n := here.store.count("claim"); n > 0 {
			t.Errorf("the process with the late notice loaded: the test tests nothing")
		}
	})
}

// A late notice of a value that was invalidated here does not answer the flight that waits for the value.
func TestNotice_AfterAnInvalidationDuringAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{TTL: time.Hour})
		holder, here := f.processes[0], f.processes[1]
		holder.locker.set(on(refuse, "release"))
		here.store.set(on(takes(200*time.Millisecond), "notice"))
		go holder.Get(t.Context(), "k") // a load of a second
		time.Sleep(500 * time.Millisecond)
		go here.Get(t.Context(), "k")
		time.Sleep(600 * time.Millisecond)
		invalidate(t, here, "k") // the notice of v1 arrives at 1.2 s
		wantValue(t, here, "k", "v2")
	})
}

// A late notice, of a value from before an invalidation here, does not displace a value that the store has not
// taken: such a value has no epoch of its own.
func TestNotice_BesideAnUntakenValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{TTL: time.Hour})
		f.origin.build = 100 * time.Millisecond
		other, here := f.processes[0], f.processes[1]
		here.store.set(func(ctx context.Context, op string) error {
			switch op {
			case "notice":
				return takes(600*time.Millisecond)(ctx, op)
			case "commit":
				return errRefused
			}
			return nil
		})
		other.Get(t.Context(), "k") // v1, whose notice arrives here at 700 ms
		time.Sleep(100 * time.Millisecond)
		invalidate(t, here, "k")
		wantValue(t, here, "k", "v2") // at 300 ms
		time.Sleep(450 * time.Millisecond)
		if v, err := here.Get(t.Context(), "k"); err != nil || v == "v1" {
			t.Errorf("%q, %v after the notice of v1, which this process had invalidated", v, err)
		}
	})
}

// A notice whose value was invalidated here while the Codec decoded it does not come into the near tier.
func TestNotice_InvalidatedWhileDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{TTL: time.Hour, Codec: bellwether.Codec{
			Marshal: func(v any) ([]byte, error) { return []byte(v.(string)), nil },
			Unmarshal: func(b []byte, v any) error {
				if string(b) == "later" {
					time.Sleep(100 * time.Millisecond)
				}
				*v.(*string) = string(b)
				return nil
			},
		}})
		here := f.processes[0]
		f.get(1, "k")
		go driver.Set(context.Background(), f.store, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte("later"), TTL: time.Hour})
		time.Sleep(50 * time.Millisecond)
		here.store.set(on(refuse, "notice")) // the invalidation's notice is lost
		invalidate(t, here, "k")
		time.Sleep(time.Second)
		if v, _, ok := here.Peek("k"); ok {
			t.Errorf("the near tier has %q, invalidated while it was decoded", v)
		}
	})
}

// A notice that waited while its flight was busy is judged by the time it was made.
func TestNotice_ReadLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, notices, bellwether.Options{Fleet: bellwether.Fleet{NearTTL: time.Second}, MaxWait: time.Minute})
		a, b, late := f.processes[0], f.processes[1], f.processes[2]
		f.origin.build = 1200 * time.Millisecond
		go a.Get(context.Background(), "k") // v1
		synctest.Wait()
		done := make(chan string)
		go func() {
			v, _ := late.Get(context.Background(), "k")
			done <- v
		}()
		synctest.Wait()
		// At 1 s late reads the store, with the reply at 4 s. Meanwhile the notice of v1 arrives,
		// and that of its invalidation is lost.
		late.store.reply.Store(int64(3 * time.Second))
		time.Sleep(1250 * time.Millisecond)
		late.store.set(on(refuse, "notice"))
		b.Invalidate(t.Context(), "k")
		f.origin.set(func(o *source) { o.build = 10 * time.Second })
		go a.Get(context.Background(), "k")
		time.Sleep(3 * time.Second)
		late.store.reply.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if v, _ := late.Get(ctx, "k"); v == "v1" {
			t.Error("v1 is served 3 s after it was invalidated elsewhere")
		}
		<-done
	})
}

// If Notify returns, panics or exits, the process calls it again.
func TestNotice_ListenersThatEnd(t *testing.T) {
	for name, end := range map[string]func(){
		"return": func() {}, "panic": func() { panic("adapter") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			if !inOwnProcess(t) {
				return
			}
			synctest.Test(t, func(t *testing.T) {
				inner := memstore.New()
				times := 0
				s := notifiesBy(inner, func(ctx context.Context, f func(driver.Notice)) {
					if times++; times <= 3 {
						end()
						return
					}
					inner.Notify(ctx, f)
				})
				c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{Fleet: bellwether.Fleet{Store: s, NearTTL: time.Hour}})
				c.Get(t.Context(), "k")
				time.Sleep(10 * time.Second)
				driver.Set(t.Context(), inner, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte("later"), TTL: time.Hour})
				synctest.Wait()
				wantValue(t, c, "k", "later") // fails if Notify is not called again
			})
		})
	}
}

func TestNotice_UserCodeThatPanics(t *testing.T) {
	if !inOwnProcess(t) {
		return
	}
	boom := func(v any) {
		if v == "bomb" {
			panic("user code")
		}
	}
	for name, o := range map[string]bellwether.Options{
		"Size":      {Size: func(_ string, v any) int { boom(v); return 1 }},
		"Unmarshal": {Codec: bellwether.Codec{Marshal: json.Marshal, Unmarshal: func(b []byte, v any) error { err := json.Unmarshal(b, v); boom(v.(*word).Word); return err }}},
		"OnError":   {OnError: func(string, error) { panic("user code") }},
	} {
		for _, elsewhere := range []bool{false, true} {
			inBubble(t, fmt.Sprint(name, elsewhere), func(t *testing.T) {
				inner := memstore.New()
				listening := inner.Notify
				if elsewhere {
					listening = func(ctx context.Context, f func(driver.Notice)) {
						inner.Notify(ctx, func(n driver.Notice) {
							done := make(chan struct{})
							go func() { defer close(done); f(n) }()
							<-done
						})
					}
				}
				o := o
				o.Fleet.Store = notifiesBy(inner, listening)
				o.Fleet.NearTTL = time.Hour
				if name == "Size" {
					size := o.Size
					o.Size = func(k string, v any) int { return size(k, v.(word).Word) }
				}
				c := cacheOf(t, func(context.Context, string) (word, error) { return word{"v"}, nil }, o)
				c.Get(t.Context(), "k")
				for _, v := range []string{`{"Word":"bomb"}`, `not JSON`, `{"Word":"later"}`} {
					driver.Set(t.Context(), inner, "test:k", driver.Entry{Kind: driver.KindValue, Value: []byte(v), TTL: time.Hour})
					synctest.Wait()
				}
				if v, err := c.Get(t.Context(), "k"); v.Word != "later" || err != nil {
					t.Errorf("Get = %q, %v", v, err)
				}
			})
		}
	}
}

type word struct{ Word string }

// Calls of Notify's function from several goroutines, or after its end, cause no hang and no kept value.
func TestNotice_RudeAdapter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New()
		var hear func(driver.Notice)
		s := notifiesBy(inner, func(ctx context.Context, f func(driver.Notice)) { hear = f; <-ctx.Done() })
		c := cacheOf(t, func(context.Context, string) (string, error) { time.Sleep(time.Second); return "v", nil }, bellwether.Options{Fleet: bellwether.Fleet{Store: s, NearTTL: time.Hour}})
		synctest.Wait()
		go c.Get(context.Background(), "k")
		synctest.Wait()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { hear(driver.Notice{Key: "test:k", Epoch: uint64(i), Invalidated: i%3 == 0}) })
		}
		wg.Wait()
		time.Sleep(time.Minute)
		c.Get(t.Context(), "kept")
		c.Close()
		for _, key := range []string{"k", "kept", "new"} {
			hear(driver.Notice{Key: "test:" + key, Epoch: 1 << 40, Made: time.Now(), Entry: driver.Entry{Kind: driver.KindValue, Value: []byte("late"), Epoch: 1 << 40, TTL: time.Hour}})
			if v, err := c.Get(t.Context(), key); !errors.Is(err, bellwether.ErrClosed) {
				t.Errorf("Get after Close = %q, %v", v, err)
			}
		}
	})
}

// A contradictory notice only causes a look.
func TestNotice_Forged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memstore.New()
		var hear func(driver.Notice)
		s := notifiesBy(inner, func(ctx context.Context, f func(driver.Notice)) { hear = f; <-ctx.Done() })
		c := cacheOf(t, func(context.Context, string) (string, error) { return "true", nil }, bellwether.Options{Fleet: bellwether.Fleet{Store: s, NearTTL: time.Second}})
		synctest.Wait()
		c.Get(t.Context(), "k")
		for _, n := range []driver.Notice{
			{Key: "test:k", Epoch: 1 << 40, Made: time.Now(), Entry: driver.Entry{Kind: driver.KindValue, Value: []byte("forged"), Epoch: 1 << 50, TTL: time.Hour}},
			{Key: "test:k", Epoch: 1 << 40, Made: time.Now(), Entry: driver.Entry{Kind: 77, Value: []byte("forged"), Epoch: 1 << 40, TTL: time.Hour}},
			{Key: "test:k", Epoch: 1 << 40, Entry: driver.Entry{Kind: driver.KindValue, Value: []byte("forged"), Epoch: 1 << 40, TTL: time.Hour}},
			{Key: "test:k", Epoch: 1 << 40},
			{Key: "test:k", Epoch: 1 << 63, Invalidated: true},
			{Key: "\x00sweeps", Epoch: 1 << 63, Invalidated: true},
		} {
			hear(n)
			wantValue(t, c, "k", "true")
		}
	})
}

// A notice of the log of sweeps counts in the log's own namespace. A log without sense sweeps everything.
func TestNotice_LogOfANamespace(t *testing.T) {
	for name, loads := range map[string]int{"test\x00sweeps": 2, "\x00sweeps": 1, "test:\x00sweeps": 1, "other\x00sweeps": 1} {
		inBubble(t, name, func(t *testing.T) {
			var hear func(driver.Notice)
			s := notifiesBy(memstore.New(), func(ctx context.Context, f func(driver.Notice)) { hear = f; <-ctx.Done() })
			loaded := 0
			c := cacheOf(t, func(context.Context, string) (string, error) { loaded++; return "v", nil }, bellwether.Options{
				TTL: time.Hour, Sweeps: true, Fleet: bellwether.Fleet{Store: s, Locker: locallock.New()},
			})
			c.Get(t.Context(), "k")
			synctest.Wait()
			hear(driver.Notice{Key: name, Epoch: 1 << 52, Made: time.Now(),
				Entry: driver.Entry{Kind: driver.KindValue, Value: []byte("no log"), Epoch: 1 << 52, TTL: time.Hour}})
			if c.Get(t.Context(), "k"); loaded != loads {
				t.Errorf("%d loads, want %d", loaded, loads)
			}
		})
	}
}

// A notice may arrive before NewMiddleware has returned.
func TestNotice_DuringConstruction(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			inner := memstore.New()
			s := notifiesBy(inner, func(ctx context.Context, f func(driver.Notice)) {
				for ctx.Err() == nil {
					f(driver.Notice{Key: "\x00sweeps", Epoch: 1})
					time.Sleep(time.Second)
				}
			})
			site := newSite(t, bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: s}}, func(http.ResponseWriter, *http.Request) {})
			site.get("http://example.com/")
		})
	}
}

// A notice from another store with later epochs is served only until NearTTL.
func TestNotice_OfAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hear func(driver.Notice)
		store := notifiesBy(memstore.New(), func(ctx context.Context, f func(driver.Notice)) { hear = f; <-ctx.Done() })
		const nearTTL, later = time.Second, 1 << 52
		c := cacheOf(t, func(context.Context, string) (string, error) { return "own", nil }, bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{NearTTL: nearTTL, Store: store}})
		wantValue(t, c, "k", "own")
		synctest.Wait()
		hear(driver.Notice{Key: "test:k", Epoch: later, Made: time.Now(),
			Entry: driver.Entry{Kind: driver.KindValue, Value: []byte("foreign"), Epoch: later, TTL: time.Hour}})
		wantValue(t, c, "k", "foreign") // or the test would check nothing
		for range 3 {
			time.Sleep(nearTTL)
			wantValue(t, c, "k", "own")
		}
	})
}
