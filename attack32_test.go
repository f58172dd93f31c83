package bellwether_test

import (
	"context"
	"encoding/json"
	"errors"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// A page is loaded although the near tier is off, or NearTTL is no longer than two trips, with
// memstore as store and locker.
func TestAttack32_NearOffElectorHTTP(t *testing.T) {
	for name, nearTTL := range map[string]time.Duration{"off": -1, "two trips": 2 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			s := &a32Count{Store: memstore.New(), trip: time.Millisecond}
			m := bellwether.NewMiddleware(bellwether.HTTPOptions{Options: bellwether.Options{Store: s, Locker: s, NearTTL: nearTTL, MaxWait: time.Second}})
			defer m.Close()
			time.Sleep(50 * time.Millisecond) // it has read its log
			var loads atomic.Int32
			h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				loads.Add(1)
				w.Header().Set("Cache-Control", "max-age=60")
				w.Write([]byte("page"))
			}))
			w, took := a32Page(t, h, "http://site.test/a")
			t.Logf("status %d after %v, %d loads, %d GetMany, %d Elect", w.Code, took, loads.Load(), s.many.Load(), s.elects.Load())
			if w.Code != 200 || loads.Load() != 1 || s.many.Load() > 10 {
				t.Error("a miss asks the store over and over, and is never elected")
			}
		})
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
	before := s.many.Load()
	time.Sleep(500 * time.Millisecond)
	if n := s.many.Load() - before; n > 0 {
		t.Errorf("half a second after its last caller has left the flight asks on: %d times; %d flights", n, m.Stats().Flights)
	}
}

// An a32Engine is memstore with hooks before and instead of Elect. It is a BatchGetter only
// by Get, so nothing is read ahead.
type a32Engine struct {
	bellwether.Elector
	elects atomic.Int64
	elect  func(ctx context.Context, key string, past uint64, ttl time.Duration, really func() (bellwether.Election, error)) (bellwether.Election, error)
	out    atomic.Int64 // leases that were given out and have not been given back
	given  atomic.Int64
	all    sync.Map // *a32Lease, those that are out
}

// leaked are the leases that are out, but for those of hedges, which may stay.
func (s *a32Engine) leaked() (keys []string) {
	s.all.Range(func(l, _ any) bool {
		if l := l.(*a32Lease); !strings.Contains(l.key, "hedge") {
			keys = append(keys, l.key+" of "+l.time.Format(time.StampMilli))
		}
		return true
	})
	return keys
}

type a32Lease struct {
	bellwether.Lease
	of   *a32Engine
	done atomic.Bool
	key  string
	time time.Time
}

func (l *a32Lease) back() {
	if !l.done.Swap(true) {
		l.of.out.Add(-1)
		l.of.all.Delete(l)
	}
}

func (l *a32Lease) Release(ctx context.Context) error {
	err := l.Lease.Release(ctx)
	if err == nil || errors.Is(err, bellwether.ErrLeaseLost) {
		l.back()
	}
	return err
}

func (s *a32Engine) wrap(key string, l bellwether.Lease) bellwether.Lease {
	s.out.Add(1)
	s.given.Add(1)
	mine := &a32Lease{Lease: l, of: s, key: key, time: time.Now()}
	s.all.Store(mine, true)
	return mine
}

func (s *a32Engine) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	l, err := s.Elector.TryAcquire(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	return s.wrap(key, l), nil
}

func (s *a32Engine) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (bellwether.Election, error) {
	s.elects.Add(1)
	really := func() (bellwether.Election, error) {
		won, err := s.Elector.Elect(ctx, key, past, ttl)
		if won.Lease != nil {
			won.Lease = s.wrap(key, won.Lease)
		}
		return won, err
	}
	if s.elect != nil {
		return s.elect(ctx, key, past, ttl, really)
	}
	return really()
}

func (s *a32Engine) CommitAndRelease(ctx context.Context, key string, e bellwether.Entry, lease bellwether.Lease) error {
	l := lease.(*a32Lease)
	err := s.Elector.CommitAndRelease(ctx, key, e, l.Lease)
	if err == nil {
		l.back()
	}
	return err
}

// An engine that answers an election with nothing (no entry, no lease, no holder: an adapter
// whose reply has lost its fields) costs no more than one that is silent.
func TestAttack32_EmptyElection(t *testing.T) {
	s := &a32Engine{Elector: memstore.New()}
	s.elect = func(ctx context.Context, _ string, _ uint64, _ time.Duration, _ func() (bellwether.Election, error)) (bellwether.Election, error) {
		time.Sleep(100 * time.Microsecond)
		return bellwether.Election{}, nil
	}
	c := cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{TTL: time.Minute, Store: s, Locker: s, MaxWait: time.Second, RebuildTimeout: time.Second})
	v, err := c.Get(t.Context(), "k")
	if n := s.elects.Load(); v != "v" || err != nil || n > 100 {
		t.Errorf("Get = %q, %v after %d elections without a pause", v, err, n)
	}
}

// New takes an Elector whose type is comparable and whose value is not.
func TestAttack32_ElectorThatCannotBeCompared(t *testing.T) {
	type traced struct {
		*memstore.Store
		hooks any
	}
	s := traced{memstore.New(), []func(){func() {}}}
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("New panics: %v", p)
		}
	}()
	cacheOf(t, func(context.Context, string) (string, error) { return "v", nil }, bellwether.Options{TTL: time.Minute, Store: s, Locker: s})
}

// What was committed after an invalidation answers a flight that the invalidation has met.
func TestAttack32_CommittedAfterTheInvalidation(t *testing.T) {
	for name, split := range map[string]bool{"one engine": false, "two": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memstore.New()
				s := &a32Engine{Elector: m}
				var c *bellwether.Cache[string]
				var once sync.Once
				meanwhile := func() {
					once.Do(func() {
						if err := c.Invalidate(t.Context(), "k"); err != nil {
							t.Error(err)
						}
						_, epoch, _ := m.Claim(t.Context(), "test:k") // another process's load, after it
						m.Commit(t.Context(), "test:k", bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("other's"), Epoch: epoch, TTL: time.Hour})
					})
				}
				s.elect = func(_ context.Context, _ string, _ uint64, _ time.Duration, really func() (bellwether.Election, error)) (bellwether.Election, error) {
					meanwhile()
					return really()
				}
				o := bellwether.Options{TTL: time.Minute, Store: s, Locker: s}
				if split {
					o.Store, o.Locker = a32Get{m, meanwhile}, struct{ bellwether.Locker }{m}
				}
				loads := 0
				c = cacheOf(t, func(context.Context, string) (string, error) { loads++; return "own", nil }, o)
				v, err := c.Get(t.Context(), "k")
				if v != "other's" || err != nil || loads != 0 {
					t.Errorf("Get = %q, %v with %d loads, want the other's value and no load", v, err, loads)
				}
			})
		})
	}
}

type a32Get struct {
	bellwether.Store
	before func()
}

func (s a32Get) Get(ctx context.Context, key string) (bellwether.Entry, error) {
	s.before()
	return s.Store.Get(ctx, key)
}

// The lease lasts as long as Options.LeaseTTL says, whichever way it is asked for: for 1.75
// times what the key's last build took.
func TestAttack32_LeaseLength(t *testing.T) {
	for name, split := range map[string]bool{"one engine": false, "two": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memstore.New()
				_, epoch, _ := m.Claim(t.Context(), "test:k")
				m.Commit(t.Context(), "test:k", bellwether.Entry{Kind: bellwether.KindValue, Value: []byte("old"), Epoch: epoch, TTL: time.Second, Keep: time.Hour, BuildTime: 8 * time.Second})
				time.Sleep(2 * time.Second)
				s := &a32Ttl{Store: m}
				o := bellwether.Options{TTL: time.Minute, Store: s, Locker: s, LeaseTTL: time.Minute}
				if split {
					o.Store = struct{ bellwether.Store }{m}
				}
				c := cacheOf(t, func(context.Context, string) (string, error) { return "own", nil }, o)
				c.Get(t.Context(), "k")
				if want := 14 * time.Second; s.ttl != want {
					t.Errorf("a lease of %v, want %v for a key whose last build took 8 s", s.ttl, want)
				}
			})
		})
	}
}

type a32Ttl struct {
	*memstore.Store
	ttl time.Duration
}

func (s *a32Ttl) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	s.ttl = ttl
	return s.Store.TryAcquire(ctx, key, ttl)
}

func (s *a32Ttl) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (bellwether.Election, error) {
	s.ttl = ttl
	return s.Store.Elect(ctx, key, past, ttl)
}

// Whatever an elector does, the flights give their places and their leases back.
func TestAttack32_NothingLeaks(t *testing.T) {
	const runs = 60
	for seed := range uint64(runs) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				var mu sync.Mutex
				dice := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
				var healed atomic.Bool
				var engines []*a32Engine
				m := memstore.New()
				var caches []*bellwether.Cache[string]
				var gate atomic.Pointer[chan struct{}]
				var inside atomic.Int32
				for range 2 {
					s := &a32Engine{Elector: m}
					engines = append(engines, s)
					var c *bellwether.Cache[string]
					s.elect = func(ctx context.Context, key string, past uint64, ttl time.Duration, really func() (bellwether.Election, error)) (bellwether.Election, error) {
						if healed.Load() {
							return really()
						}
						time.Sleep(time.Duration(dice(20)) * time.Millisecond)
						switch dice(14) {
						case 0:
							panic("elect")
						case 1:
							runtime.Goexit()
						case 2:
							return bellwether.Election{}, errors.New("refused")
						case 3:
							<-ctx.Done()
							return bellwether.Election{}, ctx.Err()
						case 4:
							c.Invalidate(context.Background(), key[len("test:"):])
						case 5:
							won, err := really()
							time.Sleep(time.Duration(dice(50)) * time.Millisecond)
							c.Invalidate(context.Background(), key[len("test:"):])
							return won, err
						case 6:
							won, err := really()
							won.Entry.Epoch = 1
							return won, err
						case 7:
							won, err := really()
							won.Entry.Value = []byte("bad")
							return won, err
						case 8:
							won, err := really()
							if won.Held != nil {
								won.Held.Until = time.Now().Add(-time.Hour)
							}
							return won, err
						case 9:
							won, err := really()
							time.Sleep(time.Duration(dice(3000)) * time.Millisecond) // deaf to its context
							return won, err
						case 10:
							return bellwether.Election{Entry: bellwether.Entry{Kind: 77, Epoch: 3, TTL: time.Hour}}, nil
						}
						return really()
					}
					c = cacheOf(t, func(ctx context.Context, key string) (string, error) {
						if g := gate.Load(); g != nil {
							inside.Add(1)
							<-*g
							return "after", nil
						}
						select {
						case <-time.After(time.Duration(dice(300)) * time.Millisecond):
						case <-ctx.Done():
							return "", context.Cause(ctx)
						}
						switch dice(12) {
						case 0:
							return "", errOrigin
						case 1:
							panic("load")
						case 2:
							runtime.Goexit()
						case 3:
							return "", bellwether.ErrNotFound
						case 4:
							c.Invalidate(ctx, key)
						case 5:
							driver.Set(ctx, m, "test:"+key, bellwether.Entry{Kind: bellwether.KindValue, Value: []byte(`"set"`), TTL: time.Second})
						case 6:
							bellwether.SetFreshness(ctx, bellwether.Freshness{})
						}
						return "v", nil
					}, bellwether.Options{
						TTL: 100 * time.Millisecond, StaleWhileRevalidate: 200 * time.Millisecond, StaleIfError: time.Second, ErrorTTL: 10 * time.Millisecond,
						Store: s, Locker: s, MaxRebuilds: 3, MaxQueued: 5, RebuildTimeout: 2 * time.Second, NearTTL: 20 * time.Millisecond, EarlyRefresh: 1, Hedge: 2, HedgeShare: 1,
						Codec: bellwether.Codec{Marshal: json.Marshal, Unmarshal: json.Unmarshal},
					})
					caches = append(caches, c)
				}
				var callers sync.WaitGroup
				for range 400 {
					c, key := caches[dice(2)], "k"+strconv.Itoa(dice(8))
					callers.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+dice(800))*time.Millisecond)
						defer cancel()
						c.Get(ctx, key)
					})
					time.Sleep(time.Duration(dice(15)) * time.Millisecond)
				}
				callers.Wait()
				t.Logf("%d elections, %d leases, %+v", engines[0].elects.Load(), engines[0].given.Load(), caches[0].Stats())
				healed.Store(true)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for i, s := range engines {
					if keys := s.leaked(); len(keys) != 0 {
						t.Errorf("engine %d: of %d leases %q were never given back", i, s.given.Load(), keys)
					}
				}
				g := make(chan struct{})
				gate.Store(&g)
				for i, c := range caches {
					inside.Store(0)
					for j := range 3 {
						go c.Get(context.Background(), "fresh"+strconv.Itoa(10*i+j))
					}
					time.Sleep(time.Second)
					if n := inside.Load(); n != 3 {
						t.Errorf("cache %d: %d of 3 places are there", i, n)
					}
				}
				close(g)
				for _, c := range caches {
					c.Close()
				}
			})
		})
	}
}

// Where the store's writes are silent and its reads are not, what the store has answers, and
// nobody loads it: whichever way the engine is asked.
func TestAttack32_SilentWritesLeaveTheHits(t *testing.T) {
	for name, by := range map[string]way{"one engine": atOnce, "two": push} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const keys = 100
				f := newFleet(t, 2, by, bellwether.Options{TTL: time.Hour})
				f.origin.build = 0
				a, b := f.processes[0], f.processes[1]
				for i := range keys {
					a.Get(t.Context(), strconv.Itoa(i))
				}
				f.wantLoads(t, keys)
				b.store.set(on(blackHole, "elect", "claim", "commit", "commit and release"))
				b.locker.set(blackHole)
				var slowest atomic.Int64
				var wg sync.WaitGroup
				for i := range keys {
					wg.Go(func() {
						began := time.Now()
						if _, err := b.Get(t.Context(), strconv.Itoa(i)); err != nil {
							t.Error(err)
						}
						if took := int64(time.Since(began)); took > slowest.Load() {
							slowest.Store(took)
						}
					})
				}
				wg.Wait()
				t.Logf("the slowest hit took %v", time.Duration(slowest.Load()))
				f.wantLoads(t, keys)
			})
		})
	}
}

type a32Batches struct {
	*a32Engine
	m *memstore.Store
}

func (s a32Batches) GetMany(ctx context.Context, keys []string, each func(int, bellwether.Entry, error)) {
	s.m.GetMany(ctx, keys, each)
}

func (s a32Batches) Notify(ctx context.Context, f func(bellwether.Notice)) { s.m.Notify(ctx, f) }

// So it is for the flights of batches.
func TestAttack32_BatchesLeakNothing(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(seed, 2))
				var mu sync.Mutex
				dice := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
				var healed atomic.Bool
				m := memstore.New()
				var engines []*a32Engine
				var caches []*bellwether.Cache[string]
				var gate atomic.Pointer[chan struct{}]
				var inside atomic.Int32
				for i := range 2 {
					s := &a32Engine{Elector: m}
					engines = append(engines, s)
					s.elect = func(ctx context.Context, key string, past uint64, ttl time.Duration, really func() (bellwether.Election, error)) (bellwether.Election, error) {
						if healed.Load() {
							return really()
						}
						time.Sleep(time.Duration(dice(20)) * time.Millisecond)
						switch dice(12) {
						case 0:
							panic("elect")
						case 1:
							runtime.Goexit()
						case 2:
							return bellwether.Election{}, errors.New("refused")
						case 3:
							<-ctx.Done()
							return bellwether.Election{}, ctx.Err()
						case 4:
							won, err := really()
							m.Invalidate(context.Background(), key)
							return won, err
						case 5:
							won, err := really()
							time.Sleep(time.Duration(dice(700)) * time.Millisecond)
							return won, err
						}
						return really()
					}
					o := bellwether.Options{
						Namespace: "test", TTL: 100 * time.Millisecond, StaleWhileRevalidate: 100 * time.Millisecond, StaleIfError: time.Second, ErrorTTL: 10 * time.Millisecond,
						Store: s, Locker: s, MaxRebuilds: 3, MaxQueued: 5, RebuildTimeout: 2 * time.Second, NearTTL: 20 * time.Millisecond,
					}
					if i == 1 || seed%2 == 0 {
						b := &a32Batches{s, m}
						o.Store, o.Locker = b, b
					}
					c := bellwether.NewBatch(func(ctx context.Context, keys []string) (map[string]string, error) {
						if g := gate.Load(); g != nil {
							inside.Add(1)
							<-*g
							return nil, errOrigin
						}
						select {
						case <-time.After(time.Duration(dice(200)) * time.Millisecond):
						case <-ctx.Done():
							return nil, context.Cause(ctx)
						}
						switch dice(10) {
						case 0:
							return nil, errOrigin
						case 1:
							panic("load")
						case 2:
							runtime.Goexit()
						}
						values := map[string]string{}
						for _, k := range keys {
							if dice(5) > 0 {
								values[k] = "v"
							}
						}
						return values, nil
					}, o)
					caches = append(caches, c)
				}
				var callers sync.WaitGroup
				for range 200 {
					c := caches[dice(2)]
					var keys []string
					for j := range 12 {
						if dice(2) == 0 {
							keys = append(keys, "k"+strconv.Itoa(j))
						}
					}
					callers.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+dice(1500))*time.Millisecond)
						defer cancel()
						c.GetMany(ctx, keys)
					})
					time.Sleep(time.Duration(dice(30)) * time.Millisecond)
				}
				callers.Wait()
				healed.Store(true)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for i, s := range engines {
					if keys := s.leaked(); len(keys) != 0 {
						t.Errorf("engine %d: of %d leases %q were never given back", i, s.given.Load(), keys)
					}
				}
				g := make(chan struct{})
				gate.Store(&g)
				for i, c := range caches {
					inside.Store(0)
					for j := range 3 {
						go c.Get(context.Background(), "fresh"+strconv.Itoa(10*i+j))
					}
					time.Sleep(time.Second)
					if n := inside.Load(); n != 3 {
						t.Errorf("cache %d: %d of 3 places are there", i, n)
					}
				}
				close(g)
				for _, c := range caches {
					c.Close()
				}
			})
		})
	}
}

// Bytes that are not what was written under the key are no entry, and cost no memory.
func TestAttack32_EntryBytes(t *testing.T) {
	e := bellwether.Entry{
		Kind: bellwether.KindValue, Value: []byte("value"), Epoch: 7, Age: 1, TTL: time.Hour, Failures: 2, RetryAge: time.Minute, Failure: "f",
		Validator: `"v"`, Tags: []string{"a", "", "\x00"},
	}
	keys := []string{"", "\x00", "\x00\x00", "k", "k\x00", "k\x00B", "kB", "BW\x03", string(make([]byte, 1<<20))}
	for i, key := range keys {
		data := e.Append(nil, key)
		var got driver.Entry
		if err := got.Decode(key, data); err != nil || got.Epoch != 7 || len(got.Tags) != 3 {
			t.Errorf("key %d: %+v, %v", i, got, err)
		}
		for j, other := range keys {
			if i != j && got.Decode(other, data) == nil {
				t.Errorf("the entry of key %d is one of key %d", i, j)
			}
		}
		if len(key) > 100 {
			continue
		}
		for n := range data {
			if got.Decode(key, data[:n]) == nil {
				t.Errorf("key %d: %d of %d bytes are an entry", i, n, len(data))
			}
			for bit := range 8 {
				bad := append([]byte(nil), data...)
				bad[n] ^= 1 << bit
				if got.Decode(key, bad) == nil {
					t.Errorf("key %d: byte %d with bit %d flipped is an entry", i, n, bit)
				}
			}
		}
		if got.Decode(key, append(data, 0)) == nil {
			t.Error("one byte more is an entry")
		}
	}
}

// A Touch whose reply is lost is no commit that came too late.
func TestAttack32_TouchWhoseReplyIsLost(t *testing.T) {
	for name, touches := range map[string]bool{"touch": true, "commit": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memstore.New()
				s := &a32Lossy{Store: m}
				fails := false
				o := bellwether.Options{
					TTL: time.Second, StaleIfError: time.Hour, ErrorTTL: time.Minute, MaxErrorTTL: time.Hour, Store: s, Locker: locallock.New(),
				}
				if !touches {
					o.Store = struct{ bellwether.Store }{s}
				}
				var told []error
				var mu sync.Mutex
				o.OnError = func(_ string, err error) { mu.Lock(); told = append(told, err); mu.Unlock() }
				c := cacheOf(t, func(context.Context, string) (string, error) {
					if fails {
						return "", errOrigin
					}
					return "v", nil
				}, o)
				c.Get(t.Context(), "k")
				time.Sleep(2 * time.Second)
				fails, s.lose = true, true
				v, err := c.Get(t.Context(), "k")
				if stats := c.Stats(); v != "v" || err != nil || stats.Fenced != 0 || stats.Loads != 2 {
					t.Errorf("Get = %q, %v: %d fenced, %d loads, told %v", v, err, stats.Fenced, stats.Loads, told)
				}
			})
		})
	}
}

// a32Lossy loses the reply of one commit, whichever way it is made, after a millisecond.
type a32Lossy struct {
	*memstore.Store
	lose bool
}

func (s *a32Lossy) lost(err error) error {
	if s.lose && err == nil {
		s.lose = false
		time.Sleep(time.Millisecond)
		return errRefused
	}
	return err
}

func (s *a32Lossy) Touch(ctx context.Context, key string, of uint64, e bellwether.Entry) error {
	return s.lost(s.Store.Touch(ctx, key, of, e))
}

func (s *a32Lossy) Commit(ctx context.Context, key string, e bellwether.Entry) error {
	return s.lost(s.Store.Commit(ctx, key, e))
}

// What Set writes is as old as it is, however long the claim takes.
func TestAttack32_SetOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		if _, err := driver.Set(t.Context(), a32Slow{m}, "k", bellwether.Entry{Kind: bellwether.KindValue, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if e, err := m.Get(t.Context(), "k"); err != nil || e.Age < 20*time.Second {
			t.Errorf("an entry that was given to Set 20 s ago has the age %v, %v", e.Age, err)
		}
	})
}

type a32Slow struct{ *memstore.Store }

func (s a32Slow) Claim(ctx context.Context, key string) (bellwether.Entry, uint64, error) {
	time.Sleep(20 * time.Second)
	return s.Store.Claim(ctx, key)
}
