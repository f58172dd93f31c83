package bellwether_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// A User is a value of the examples.
type User struct{ Name string }

// loadUser stands for a slow query.
func loadUser(ctx context.Context, id string) (User, error) {
	return User{Name: "user " + id}, nil
}

func Example() {
	loads := 0
	users := bellwether.New(func(ctx context.Context, id string) (string, error) {
		loads++ // no lock: one load runs for all callers
		time.Sleep(10 * time.Millisecond)
		return "user " + id, nil
	}, bellwether.Options{TTL: time.Minute, StaleWhileRevalidate: 10 * time.Minute})
	defer users.Close()

	var herd sync.WaitGroup
	for range 1000 {
		herd.Go(func() { users.Get(context.Background(), "42") })
	}
	herd.Wait()
	user, err := users.Get(context.Background(), "42")
	fmt.Println(user, err, loads)
	// Output: user 42 <nil> 1
}

// Two caches with the same Store and Locker behave as two processes.
func ExampleOptions_store() {
	o := bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "lengths"}}
	load := func(ctx context.Context, key string) (int, error) {
		fmt.Println("loading", key)
		return len(key), nil
	}
	here, there := bellwether.New(load, o), bellwether.New(load, o)
	defer here.Close()
	defer there.Close()

	a, _ := here.Get(context.Background(), "key")
	b, _ := there.Get(context.Background(), "key")
	fmt.Println(a, b)
	// Output:
	// loading key
	// 3 3
}

func ExampleNewLoader() {
	type row struct{ name, version string }
	c := bellwether.NewLoader(func(ctx context.Context, r bellwether.Request[row]) (bellwether.Result[row], error) {
		if r.Validator == "v1" { // such as a query for newer rows that has found none
			fmt.Println("not modified:", r.Previous.name)
			return bellwether.Result[row]{NotModified: true}, nil
		}
		return bellwether.Result[row]{Value: row{"Ada", "v1"}, Validator: "v1"}, nil
	}, bellwether.Options{TTL: time.Millisecond})
	defer c.Close()

	c.Get(context.Background(), "42")
	time.Sleep(10 * time.Millisecond)
	user, err := c.Get(context.Background(), "42")
	fmt.Println(user.name, err)
	// Output:
	// not modified: Ada
	// Ada <nil>
}

func ExampleResult_freshness() {
	c := bellwether.NewLoader(func(ctx context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
		return bellwether.Result[string]{
			Value:     time.Now().Format(time.RFC3339Nano),
			Freshness: &bellwether.Freshness{TTL: time.Nanosecond}, // as the origin says
		}, nil
	}, bellwether.Options{TTL: time.Hour})
	defer c.Close()

	a, _ := c.Get(context.Background(), "now")
	b, _ := c.Get(context.Background(), "now")
	fmt.Println(a == b)
	// Output: false
}

func ExampleErrNotFound() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		fmt.Println("asking the database")
		return "", fmt.Errorf("no row %s: %w", key, bellwether.ErrNotFound)
	}, bellwether.Options{TTL: time.Minute, NotFoundTTL: 10 * time.Second})
	defer c.Close()

	for range 2 { // the second answer is remembered
		_, err := c.Get(context.Background(), "42")
		fmt.Println(errors.Is(err, bellwether.ErrNotFound))
	}
	// Output:
	// asking the database
	// true
	// true
}

func ExampleCache_Invalidate() {
	version := 1
	c := bellwether.New(func(ctx context.Context, key string) (int, error) { return version, nil },
		bellwether.Options{TTL: time.Hour})
	defer c.Close()

	before, _ := c.Get(context.Background(), "k")
	version = 2
	err := c.Invalidate(context.Background(), "k")
	after, _ := c.Get(context.Background(), "k")
	fmt.Println(before, err, after)
	// Output: 1 <nil> 2
}

// A health page shows the values of this process without a load.
func ExampleCache_Peek() {
	c := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
	defer c.Close()

	_, _, ok := c.Peek("42")
	fmt.Println(ok)
	c.Get(context.Background(), "42")
	user, age, ok := c.Peek("42")
	fmt.Println(user.Name, age < time.Minute, ok)
	// Output:
	// false
	// user 42 true true
}

// Callers get the present value until the new value is loaded.
func ExampleCache_Refresh() {
	version, loaded := 0, make(chan int, 2)
	c := bellwether.New(func(ctx context.Context, key string) (int, error) {
		version++
		defer func() { loaded <- version }()
		return version, nil
	}, bellwether.Options{TTL: time.Hour})
	defer c.Close()

	c.Get(context.Background(), "k")
	fmt.Println("loaded", <-loaded)
	err := c.Refresh(context.Background(), "k")
	fmt.Println(err, "loaded", <-loaded)
	// Output:
	// loaded 1
	// <nil> loaded 2
}

// A program that must not start without its engines checks them first.
func ExampleCache_Ping() {
	users := bellwether.New(loadUser, bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "users"},
	})
	defer users.Close()

	fmt.Println(users.Ping(context.Background()))
	// Output: <nil>
}

// After a write to the origin, Set spares the next caller a load.
func ExampleCache_Set() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		fmt.Println("loading")
		return "old", nil
	}, bellwether.Options{TTL: time.Hour})
	defer c.Close()

	before, _ := c.Get(context.Background(), "k")
	err := c.Set(context.Background(), "k", "new")
	after, _ := c.Get(context.Background(), "k")
	fmt.Println(before, err, after)
	// Output:
	// loading
	// old <nil> new
}

func ExampleNew() {
	ctx := context.Background()
	users := bellwether.New(loadUser, bellwether.Options{
		TTL:                  time.Minute,
		StaleWhileRevalidate: 10 * time.Minute, // served at once while one rebuild runs behind it
		StaleIfError:         time.Hour,        // served if that fails
	})
	defer users.Close()
	user, err := users.Get(ctx, "42")
	fmt.Println(user.Name, err)
	// Output: user 42 <nil>
}

// loadUsers stands for one query that finds many rows.
func loadUsers(ctx context.Context, ids []string) (map[string]User, error) {
	found := map[string]User{}
	for _, id := range ids {
		if id != "nobody" {
			found[id] = User{Name: "user " + id}
		}
	}
	return found, nil
}

func ExampleNewBatch() {
	ctx := context.Background()
	users := bellwether.NewBatch(loadUsers, bellwether.Options{TTL: time.Minute})
	defer users.Close()
	found, err := users.GetMany(ctx, []string{"41", "42", "nobody"}) // one call of loadUsers
	fmt.Println(found["42"].Name, err)
	fmt.Println(len(found))
	// Output:
	// user 42 <nil>
	// 2
}

// A batch load reports failed keys beside the values of other keys.
func ExampleCache_GetMany() {
	users := bellwether.NewBatch(func(ctx context.Context, ids []string) (map[string]User, error) {
		fmt.Println("loading", ids)
		found := map[string]User{"41": {Name: "user 41"}}
		return found, &bellwether.BatchError{Errors: map[string]error{"42": errors.New("shard down")}}
	}, bellwether.Options{TTL: time.Minute})
	defer users.Close()

	found, err := users.GetMany(context.Background(), []string{"41", "42", "nobody"})
	fmt.Println(found["41"].Name)
	if failed, ok := errors.AsType[*bellwether.BatchError](err); ok {
		fmt.Println(failed.Errors["42"])
	}
	_, ok := found["nobody"]
	fmt.Println(ok)
	// Output:
	// loading [41 42 nobody]
	// user 41
	// shard down
	// false
}

func ExampleNewBatchLoader() {
	loads := 0
	prices := bellwether.NewBatchLoader(func(ctx context.Context, requests []bellwether.Request[int]) (map[string]bellwether.Result[int], error) {
		loads += len(requests)
		found := map[string]bellwether.Result[int]{}
		for _, r := range requests {
			price := bellwether.Result[int]{Value: len(r.Key)}
			if r.Key == "fish" {
				price.Freshness = &bellwether.Freshness{TTL: time.Nanosecond}
			}
			found[r.Key] = price
		}
		return found, nil
	}, bellwether.Options{TTL: time.Hour})
	defer prices.Close()

	for range 2 {
		prices.GetMany(context.Background(), []string{"salt", "fish"})
	}
	fmt.Println(loads)
	// Output: 3
}

// versions returns a load that returns 1, 2, 3 and so on.
func versions() func(context.Context, string) (int64, error) {
	var n atomic.Int64
	return func(context.Context, string) (int64, error) { return n.Add(1), nil }
}

// A caller with a stale value does not wait for the rebuild.
func ExampleOptions_staleWhileRevalidate() {
	next, hold := versions(), make(chan struct{})
	c := bellwether.New(func(ctx context.Context, key string) (int64, error) {
		v, err := next(ctx, key)
		if v > 1 {
			<-hold // a slow rebuild
		}
		return v, err
	}, bellwether.Options{TTL: time.Nanosecond, StaleWhileRevalidate: time.Hour})
	defer c.Close()
	defer close(hold)

	a, _ := c.Get(context.Background(), "k")
	b, _ := c.Get(context.Background(), "k")
	fmt.Println(a, b)
	// Output: 1 1
}

// Callers get the stale value if the rebuild fails.
func ExampleOptions_staleIfError() {
	var down atomic.Bool
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		if down.Load() {
			return "", errors.New("no connection")
		}
		return "value", nil
	}, bellwether.Options{TTL: time.Nanosecond, StaleIfError: time.Hour})
	defer c.Close()

	c.Get(context.Background(), "k")
	down.Store(true)
	fmt.Println(c.Get(context.Background(), "k"))
	// Output: value <nil>
}

// A caller with a stale value waits for the fresh value, for up to Patience.
func ExampleOptions_patience() {
	c := bellwether.New(versions(), bellwether.Options{
		TTL: time.Nanosecond, StaleWhileRevalidate: time.Hour,
		Patience: time.Minute,
	})
	defer c.Close()

	a, _ := c.Get(context.Background(), "k")
	b, _ := c.Get(context.Background(), "k")
	fmt.Println(a, b)
	// Output: 1 2
}

// A popular value is rebuilt before it expires. The usual beta is 1; this one keeps the example short.
func ExampleOptions_earlyRefresh() {
	next, again := versions(), make(chan struct{})
	var once sync.Once
	c := bellwether.New(func(ctx context.Context, key string) (int64, error) {
		v, err := next(ctx, key)
		if v > 1 {
			once.Do(func() { close(again) })
		}
		return v, err
	}, bellwether.Options{TTL: time.Hour, EarlyRefresh: 1e12})
	defer c.Close()

	for {
		c.Get(context.Background(), "k") // waits only the first time
		select {
		case <-again:
			fmt.Println("rebuilt within its hour")
			return
		default:
		}
	}
	// Output: rebuilt within its hour
}

// A failure is remembered, so that callers do not hammer an origin that is down.
func ExampleOptions_errorTTL() {
	loads := 0
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		loads++
		return "", errors.New("no connection")
	}, bellwether.Options{TTL: time.Minute, ErrorTTL: time.Minute})
	defer c.Close()

	_, first := c.Get(context.Background(), "k")
	_, second := c.Get(context.Background(), "k")
	fmt.Println(first, second, loads)
	// Output: no connection no connection 1
}

// MaxWait ends the caller's wait but not the rebuild, whose value is kept.
func ExampleOptions_maxWait() {
	hold := make(chan struct{})
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		<-hold
		return "value", nil
	}, bellwether.Options{TTL: time.Minute, MaxWait: time.Millisecond})
	defer c.Close()

	_, err := c.Get(context.Background(), "k")
	fmt.Println(errors.Is(err, bellwether.ErrWaitTimeout))
	close(hold)
	for err != nil { // until the value is there
		_, err = c.Get(context.Background(), "k")
	}
	fmt.Println(c.Stats().Loads)
	// Output:
	// true
	// 1
}

// RebuildTimeout ends the load's context and answers its callers.
func ExampleOptions_rebuildTimeout() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}, bellwether.Options{TTL: time.Minute, RebuildTimeout: time.Millisecond})
	defer c.Close()

	_, err := c.Get(context.Background(), "k")
	fmt.Println(errors.Is(err, bellwether.ErrRebuildTimeout))
	// Output: true
}

// Values that were loaded together do not expire together.
func ExampleOptions_tTLJitter() {
	const ttl = time.Hour
	expire := map[time.Duration]bool{}
	for _, key := range []string{"a", "b", "c", "d"} {
		store := memstore.New()
		c := bellwether.New(versions(), bellwether.Options{TTL: ttl, TTLJitter: 0.2, Fleet: bellwether.Fleet{Store: store, Namespace: "versions"}})
		c.Get(context.Background(), key)
		entry, _ := store.Get(context.Background(), "versions:"+key)
		expire[entry.TTL] = true
		if entry.TTL > ttl || entry.TTL < ttl*8/10 {
			fmt.Println("out of bounds:", entry.TTL)
		}
		c.Close()
	}
	fmt.Println(len(expire), "keys, and as many TTLs")
	// Output: 4 keys, and as many TTLs
}

// With MaxRebuilds loads under way and MaxQueued keys waiting, callers of a further key get an error.
func ExampleOptions_maxRebuilds() {
	running, hold := make(chan bool), make(chan struct{})
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		running <- true
		<-hold
		return "value of " + key, nil
	}, bellwether.Options{TTL: time.Minute, Limits: bellwether.Limits{MaxRebuilds: 1, MaxQueued: 1}})
	defer c.Close()

	var callers sync.WaitGroup
	callers.Go(func() { c.Get(context.Background(), "a") })
	<-running
	refused := make(chan error, 2)
	for _, key := range []string{"b", "c"} { // one key waits, and the other is refused
		callers.Go(func() {
			_, err := c.Get(context.Background(), key)
			refused <- err
		})
	}
	fmt.Println(errors.Is(<-refused, bellwether.ErrOverloaded))
	close(hold)
	<-running
	callers.Wait()
	// Output: true
}

// Two caches of different values share an engine and use the same keys.
func ExampleOptions_namespace() {
	engine := memstore.New()
	of := func(what string) *bellwether.Cache[string] {
		return bellwether.New(func(ctx context.Context, id string) (string, error) { return what + " " + id, nil },
			bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: engine, Namespace: what}})
	}
	users, orders := of("user"), of("order")
	defer users.Close()
	defer orders.Close()

	user, _ := users.Get(context.Background(), "42")
	order, _ := orders.Get(context.Background(), "42")
	fmt.Println(user, order)
	// Output: user 42 order 42
}

// A Codec has two functions, such as those of an encoding package.
func ExampleCodec() {
	o := bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: memstore.New(), Namespace: "users"}}
	o.Codec.Marshal = func(v any) ([]byte, error) {
		fmt.Println("encoding")
		return json.Marshal(v)
	}
	o.Codec.Unmarshal = func(b []byte, v any) error {
		fmt.Println("decoding")
		return json.Unmarshal(b, v)
	}
	here, there := bellwether.New(loadUser, o), bellwether.New(loadUser, o)
	defer here.Close()
	defer there.Close()

	here.Get(context.Background(), "42")
	user, _ := there.Get(context.Background(), "42")
	fmt.Println(user.Name)
	// Output:
	// encoding
	// decoding
	// user 42
}

// OnError gets an error that no caller gets: the store has no room for the value, and the caller has it.
func ExampleOptions_onError() {
	small := memstore.New()
	small.MaxBytes = 1000
	told := make(chan error, 10)
	c := bellwether.New(func(ctx context.Context, key string) (string, error) { return strings.Repeat("x", 5000), nil },
		bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: small, Namespace: "values"}, OnError: func(key string, err error) { told <- err }})
	defer c.Close()

	value, err := c.Get(context.Background(), "k")
	fmt.Println(len(value), err)
	fmt.Println(errors.Is(<-told, driver.ErrTooLarge))
	// Output:
	// 5000 <nil>
	// true
}

// This observer gets herds only: the number of callers that a rebuild has answered, and their waits.
func ExampleOptions_observers() {
	c := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute, Observers: []observe.Observer{{
		Herd: func(h observe.Herd) { fmt.Println("a herd at", h.Key, "of", h.Callers) },
	}}})
	c.Get(context.Background(), "42")
	c.Close()
	// Output: a herd at 42 of 1
}

// A load that needs the caller's transaction differs from call to call.
func ExampleCache_GetFunc() {
	c := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
	defer c.Close()

	user, err := c.GetFunc(context.Background(), "42", func(ctx context.Context, id string) (User, error) {
		return User{Name: "somebody else, " + id}, nil
	})
	fmt.Println(user.Name, err)
	// Output: somebody else, 42 <nil>
}

func ExampleCache_Stats() {
	c := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
	defer c.Close()
	for range 3 {
		c.Get(context.Background(), "42")
	}
	s := c.Stats()
	fmt.Println(s.Misses, s.Hits, s.Loads)
	// Output: 1 2 1
}

func namesOf(ids []string) map[string]string {
	names := map[string]string{}
	for _, id := range ids {
		names[id] = "user " + id
	}
	return names
}

func ExampleOptions_batchWindow() {
	users := bellwether.NewBatch(func(ctx context.Context, ids []string) (map[string]string, error) {
		fmt.Println("loading", len(ids))
		return namesOf(ids), nil
	}, bellwether.Options{TTL: time.Minute, BatchWindow: 5 * time.Millisecond})
	defer users.Close()

	var calls sync.WaitGroup
	for _, id := range []string{"41", "42", "43"} {
		calls.Go(func() { users.Get(context.Background(), id) })
	}
	calls.Wait()
	// Output: loading 3
}

func ExampleCache_InvalidateMatching() {
	loads := 0
	users := bellwether.NewLoader(func(ctx context.Context, r bellwether.Request[string]) (bellwether.Result[string], error) {
		loads++
		return bellwether.Result[string]{Value: "user " + r.Key, Tags: []string{"org:7"}}, nil
	}, bellwether.Options{TTL: time.Minute})
	defer users.Close()

	users.Get(context.Background(), "42")
	err := users.InvalidateMatching(context.Background(), bellwether.Match{Tags: []string{"org:7"}})
	user, _ := users.Get(context.Background(), "42")
	fmt.Println(user, loads, err)
	// Output: user 42 2 <nil>
}

func ExampleMiddleware_Refresh() {
	mw := bellwether.NewMiddleware(bellwether.HTTPOptions{})
	defer mw.Close()
	calls := 0
	h := mw.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintln(w, "call", calls)
	}))
	get(h, "http://shop.test/")
	r, err := http.NewRequest(http.MethodGet, "http://shop.test/", nil)
	if err == nil {
		err = mw.Refresh(h, r)
	}
	fmt.Println(err)
	get(h, "http://shop.test/")
	// Output:
	// call 1
	// <nil>
	// call 2
}

// A panic of a load is a failure with the stack. The process goes on.
func ExamplePanicError() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) { panic("no such table") },
		bellwether.Options{TTL: time.Minute})
	defer c.Close()

	_, err := c.Get(context.Background(), "k")
	if panicked, ok := errors.AsType[*bellwether.PanicError](err); ok {
		fmt.Println(panicked.Value, len(panicked.Stack) > 0)
	}
	// Output: no such table true
}

// A failure reaches the other processes of a fleet as text.
func ExampleRemoteError() {
	o := bellwether.Options{TTL: time.Minute, ErrorTTL: time.Minute, Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "rows"}}
	load := func(ctx context.Context, key string) (string, error) { return "", errors.New("no connection") }
	here, there := bellwether.New(load, o), bellwether.New(load, o)
	defer here.Close()
	defer there.Close()

	here.Get(context.Background(), "k")
	_, err := there.Get(context.Background(), "k")
	if remote, ok := errors.AsType[*bellwether.RemoteError](err); ok {
		fmt.Println(remote.Message)
	}
	// Output: no connection
}

// Soft keeps the old value for callers while the new one is loaded.
func ExampleMatch_soft() {
	next, hold := versions(), make(chan struct{})
	c := bellwether.New(func(ctx context.Context, key string) (int64, error) {
		v, err := next(ctx, key)
		if v > 1 {
			<-hold // a slow rebuild
		}
		return v, err
	}, bellwether.Options{TTL: time.Hour, StaleWhileRevalidate: time.Hour})
	defer c.Close()
	defer close(hold)

	before, _ := c.Get(context.Background(), "k")
	err := c.InvalidateMatching(context.Background(), bellwether.Match{Prefixes: []string{"k"}, Soft: true})
	after, _ := c.Get(context.Background(), "k")
	fmt.Println(before, err, after)
	// Output: 1 <nil> 1
}

// The holder of a key hangs. Another process begins a second load after three usual build times, and its
// value also answers the holder's callers.
func ExampleOptions_hedge() {
	o := bellwether.Options{
		TTL: time.Hour, Hedge: 3,
		HedgeShare: 1, // of this process's rebuilds: the example has only a few
		Fleet:      bellwether.Fleet{Store: memstore.New(), Locker: locallock.New(), Namespace: "users"},
	}
	var hang atomic.Bool
	hangs := make(chan struct{})
	load := func(ctx context.Context, key string) (User, error) {
		if hang.CompareAndSwap(true, false) {
			close(hangs)
			<-ctx.Done() // the other process's commit cancels this load
			return User{}, ctx.Err()
		}
		return loadUser(ctx, key)
	}
	here, there := bellwether.New(load, o), bellwether.New(load, o)
	defer here.Close()
	defer there.Close()
	here.Get(context.Background(), "40") // each process learns the usual build time
	there.Get(context.Background(), "41")

	hang.Store(true)
	var callers sync.WaitGroup
	callers.Go(func() { fmt.Println(here.Get(context.Background(), "42")) })
	<-hangs
	there.Get(context.Background(), "42")
	callers.Wait()
	// Output: {user 42} <nil>
}

// Sweeps carries invalidations by prefix or tag to the other processes, at once without a near tier.
func ExampleOptions_sweeps() {
	o := bellwether.Options{
		TTL: time.Hour, Sweeps: true,
		Fleet: bellwether.Fleet{Engine: memstore.New(), Namespace: "pages", NearTTL: -1},
	}
	next := versions()
	here, there := bellwether.New(next, o), bellwether.New(next, o)
	defer here.Close()
	defer there.Close()

	before, _ := there.Get(context.Background(), "user:42")
	err := here.InvalidateMatching(context.Background(), bellwether.Match{Prefixes: []string{"user:"}})
	after, _ := there.Get(context.Background(), "user:42")
	fmt.Println(before, err, after)
	// Output: 1 <nil> 2
}

// The cache cannot see memory outside Go's heap. By its Size, the picture exceeds NearBytes, and is evicted.
func ExampleOptions_size() {
	evicted := make(chan string, 1)
	pictures := bellwether.New(loadUser, bellwether.Options{
		TTL:       time.Hour,
		Size:      func(key string, value any) int { return 1 << 20 },
		Limits:    bellwether.Limits{NearBytes: 1 << 16},
		Observers: []observe.Observer{{Evict: func(key string, bytes int) { evicted <- key }}},
	})
	defer pictures.Close()

	picture, err := pictures.Get(context.Background(), "42")
	fmt.Println(picture.Name, err)
	fmt.Println("evicted", <-evicted)
	// Output:
	// user 42 <nil>
	// evicted 42
}

// With a negative NearTTL, an invalidation holds in all processes when Invalidate returns.
func ExampleFleet_nearTTL() {
	o := bellwether.Options{TTL: time.Hour, Fleet: bellwether.Fleet{Engine: memstore.New(), Namespace: "rows", NearTTL: -1}}
	next := versions()
	here, there := bellwether.New(next, o), bellwether.New(next, o)
	defer here.Close()
	defer there.Close()

	a, _ := here.Get(context.Background(), "k")
	b, _ := there.Get(context.Background(), "k")
	err := here.Invalidate(context.Background(), "k")
	c, _ := there.Get(context.Background(), "k")
	fmt.Println(a, b, err, c)
	// Output: 1 1 <nil> 2
}

// A process dies with the lease of a key. Callers in another process wait for the end of the lease.
func ExampleFleet_leaseTTL() {
	const leaseTTL = 50 * time.Millisecond
	start, locker := time.Now(), locallock.New()
	locker.TryAcquire(context.Background(), "users:42", leaseTTL) // and no Renew or Release
	users := bellwether.New(loadUser, bellwether.Options{
		TTL:   time.Minute,
		Fleet: bellwether.Fleet{Store: memstore.New(), Locker: locker, Namespace: "users", LeaseTTL: leaseTTL},
	})
	defer users.Close()

	user, err := users.Get(context.Background(), "42")
	fmt.Println(user.Name, err, time.Since(start) >= leaseTTL)
	// Output: user 42 <nil> true
}

// Also a value in the near tier is not served after Close.
func ExampleErrClosed() {
	c := bellwether.New(loadUser, bellwether.Options{TTL: time.Minute})
	c.Get(context.Background(), "42")
	c.Close()

	_, err := c.Get(context.Background(), "42")
	fmt.Println(errors.Is(err, bellwether.ErrClosed))
	// Output: true
}

// Close ends the context of a load under way, and answers the waiting callers.
func ExampleCache_Close() {
	loading, canceled := make(chan struct{}), make(chan error, 1)
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		close(loading)
		<-ctx.Done()
		canceled <- context.Cause(ctx)
		return "", ctx.Err()
	}, bellwether.Options{TTL: time.Minute})

	waiting := make(chan error, 1)
	go func() {
		_, err := c.Get(context.Background(), "k")
		waiting <- err
	}()
	<-loading
	fmt.Println(c.Close())
	fmt.Println(<-waiting)
	fmt.Println(<-canceled)
	// Output:
	// <nil>
	// bellwether: cache is closed
	// bellwether: cache is closed
}

// A replica is a store that refuses invalidations.
type replica struct{ driver.Store }

func (replica) Invalidate(ctx context.Context, key string) error {
	return errors.New("this server is a replica")
}

// A caller of Invalidate hears of a store that does not answer. Get goes on without the store.
func ExampleErrUnavailable() {
	users := bellwether.New(loadUser, bellwether.Options{
		TTL:   time.Minute,
		Fleet: bellwether.Fleet{Store: replica{memstore.New()}, Namespace: "users", EngineTimeout: time.Minute},
	})
	defer users.Close()

	err := users.Invalidate(context.Background(), "42")
	fmt.Println(errors.Is(err, bellwether.ErrUnavailable))
	fmt.Println(err)
	user, err := users.Get(context.Background(), "42")
	fmt.Println(user.Name, err)
	// Output:
	// true
	// invalidating "42": bellwether: engine unavailable: this server is a replica
	// user 42 <nil>
}

// A load that ends its goroutine, such as by the FailNow method of a test, has failed.
func ExampleErrGoexit() {
	c := bellwether.New(func(ctx context.Context, key string) (string, error) {
		runtime.Goexit()
		return "", nil
	}, bellwether.Options{TTL: time.Minute})
	defer c.Close()

	_, err := c.Get(context.Background(), "k")
	fmt.Println(errors.Is(err, bellwether.ErrGoexit))
	// Output: true
}
