package fleettest

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// This file takes ten processes through the promises of a fleet. ten_share.go, ten_herd.go and
// ten_batch.go test sharing, ten_hedge.go slow processes, and ten_outage.go overload and outages.

const (
	tenNearTTL   = time.Second
	shortNearTTL = tenNearTTL / 4   // of the fleet with healthy engines
	tenLease     = 20 * time.Second // far longer than any takeover here may take
	tenSlots     = 16               // MaxRebuilds
	tenQueued    = 4                // MaxQueued
	tenShare     = .2               // HedgeShare
)

type tenCase struct {
	name string
	test func(t *testing.T, f *fleet, kind Kind)
}

// TenProcesses runs two fleets of ten. The first fleet's engines fail; its last two cases leave it with
// a process less and without its store. The second fleet's engines do not fail.
func TenProcesses(t *testing.T, kind Kind) {
	t.Run("engines that fail", func(t *testing.T) {
		tenCases(t, kind, fleetOptions{
			NearTTL: tenNearTTL, LeaseTTL: tenLease, EarlyRefresh: 1, Observed: true, proxied: true,
		}, []tenCase{
			{"near tiers follow an invalidation", nearTiersFollow},
			{"a failure is shared", failureShared},
			{"a steady key is rebuilt early", rebuiltEarly},
			{"the store is slow", tenWithSlowStore},
			{"the holder is killed", tenTakeOver},
			{"the store is killed", tenWithoutStore},
		})
	})
	t.Run("engines that answer", func(t *testing.T) {
		tenCases(t, kind, fleetOptions{
			NearTTL: shortNearTTL, EngineTimeout: patient, Hedge: 3, HedgeShare: tenShare, MaxRebuilds: tenSlots, MaxQueued: tenQueued,
			Observed: true, metered: kind.Name != Redis.Name, // see asked
		}, []tenCase{
			{"builds become known", tenLearn},
			{"a cold key", tenHerd},
			{"batches", tenBatches},
			{"the holder hangs", tenHedge},
			{"the origin is slow", tenWithSlowOrigin},
			{"too many keys", tooManyKeys},
		})
	})
}

func tenCases(t *testing.T, kind Kind, o fleetOptions, cases []tenCase) {
	f := newFleet(t, kind, 10, o)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f.origin.delay.Store(0)
			f.origin.ttl.Store(0)
			f.origin.fails.Store(nil)
			f.origin.onLoad.Store(nil)
			c.test(t, f, kind)
		})
	}
}

func (o *origin) fail(prefix string) { o.fails.Store(&prefix) }

// follow has all processes except the last read a key for a while, and returns the sightings of each.
func (f *fleet) follow(key string, d, every time.Duration) func() [][]sighting {
	seen := make([][]sighting, len(f.workers)-1)
	var wg sync.WaitGroup
	for i, w := range f.workers[:len(seen)] {
		wg.Go(func() { seen[i] = w.do(order{Do: "follow", Key: key, For: d, Every: every}).Seen })
	}
	return func() [][]sighting { wg.Wait(); return seen }
}

// versionOf is the n of "key#n", or 0.
func versionOf(value string) int {
	_, n, _ := strings.Cut(value, "#")
	v, _ := strconv.Atoi(n)
	return v
}

// wantForward fails if a process got an older version after a newer one.
func wantForward(t *testing.T, seen [][]sighting) {
	t.Helper()
	for id, s := range seen {
		for i := 1; i < len(s); i++ {
			if versionOf(s[i].Value) <= versionOf(s[i-1].Value) {
				t.Errorf("process %d got %q after %q", id, s[i].Value, s[i-1].Value)
			}
		}
	}
}
