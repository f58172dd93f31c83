package fleettest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMemcacheds restarts one of three memcacheds under a herd. A key's items are spread over all three.
func TestMemcacheds(t *testing.T) {
	t.Parallel()
	f := newFleet(t, Memcacheds, 3, fleetOptions{TTL: time.Minute, LeaseTTL: time.Second, NearTTL: 50 * time.Millisecond})
	const build, keys = 200 * time.Millisecond, 12
	f.origin.delay.Store(int64(build))
	dead := f.servers[0]
	dead.MustOwn(t)
	noErrors := func(when string, r report) {
		t.Helper()
		for v, n := range r.Values {
			if strings.HasPrefix(v, "error") {
				t.Errorf("%s %d callers failed: %s", when, n, v)
			}
		}
	}
	key := func(i int) string { return fmt.Sprint("key", i) }
	each := func(do func(i int)) {
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
	}
	get := func(i int) report { return f.all(order{Do: "get", Key: key(i)}) }
	each(func(i int) { noErrors("at first", get(i)) })

	invalidated := [keys]int{} // the loads so far
	each(func(i int) {
		invalidated[i] = f.origin.count(key(i))
		if r := f.workers[i%3].do(order{Do: "invalidate", Key: key(i)}); r.Err != "" {
			t.Errorf("invalidating: %s", r.Err)
		}
	})
	newer := func(when string, served []report) {
		t.Helper()
		for i, r := range served {
			noErrors(when, r)
			for v := range r.Values {
				var load int
				fmt.Sscanf(v, key(i)+"#%d", &load)
				if load <= invalidated[i] {
					t.Errorf("%s %q is served, which was invalidated after load %d", when, v, invalidated[i])
				}
			}
		}
	}
	all := func() []report {
		served := make([]report, keys)
		each(func(i int) { served[i] = get(i) })
		return served
	}
	time.Sleep(200 * time.Millisecond) // NearTTL, and a busy machine
	newer("after the invalidation", all())

	done := make(chan report)
	go func() { done <- f.all(order{Do: "drive", Key: "hot", Callers: 50, For: 1200 * time.Millisecond}) }()
	time.Sleep(300 * time.Millisecond)
	dead.Kill()
	noErrors("of the herd", <-done)
	newer("with a dead server", all())
	dead.Start()
	newer("after its return", all())

	back := time.Now()
	for round, ok := 0, 0; ok < 3; round++ { // three in a row, with different servers
		if time.Since(back) > 8*time.Second {
			t.Fatal("8 s after the server came back there is still more than one load per fleet")
		}
		next := fmt.Sprint("after", round)
		if ok++; f.herd(next, 50).Values[next+"#1"] != 150 || f.origin.count(next) != 1 {
			ok = 0
		}
	}
	t.Logf("one load per fleet within %v of the server's return", time.Since(back))
	newer("at last", all())
}
