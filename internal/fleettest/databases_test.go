package fleettest

import (
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
)

// TestDatabases has fleets in two databases of one server: values and invalidations stay in each.
func TestDatabases(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	testserver.Restrict(t, testserver.RedisRules, server)
	start := func(testing.TB) []*testserver.Server { return []*testserver.Server{server} }
	first, second := Redis, RedisDatabase
	first.Start, second.Start = start, start
	o := fleetOptions{TTL: time.Hour, NearTTL: time.Minute, EngineTimeout: patient}
	production, staging := newFleet(t, first, 2, o), newFleet(t, second, 2, o)
	wants := func(f *fleet, when, want string) {
		t.Helper()
		if r := f.all(order{Do: "get", Key: "k"}); r.Values[want] != 2 {
			t.Errorf("%s: got %v, want %s in both processes", when, r.Values, want)
		}
	}
	wants(production, "at first", "k#1")
	wants(staging, "at first", "k#1")
	for range 3 {
		if r := staging.workers[0].do(order{Do: "invalidate", Key: "k"}); r.Err != "" {
			t.Fatal(r.Err)
		}
		wants(production, "after an invalidation in the other database", "k#1")
		staging.all(order{Do: "get", Key: "k"})
	}
	wants(production, "after rebuilds in the other database", "k#1")
	if n := production.origin.count("k"); n != 1 {
		t.Errorf("%d loads, want 1", n)
	}
}
