package main

import (
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file has the steps. Each adds one option to the step before it.

// reportTTL is the TTL of all steps, short for short runs.
const reportTTL = time.Second

// A setup makes the service's cache.
type setup func(loadReport load) *bellwether.Cache[Report]

func ttl(loadReport load) *bellwether.Cache[Report] {
	reports := bellwether.New(loadReport, bellwether.Options{
		TTL: time.Second,
	})
	return reports
}

func staleWhileRevalidate(loadReport load) *bellwether.Cache[Report] {
	reports := bellwether.New(loadReport, bellwether.Options{
		TTL:                  time.Second,
		StaleWhileRevalidate: 500 * time.Millisecond,
	})
	return reports
}

func staleIfError(loadReport load) *bellwether.Cache[Report] {
	reports := bellwether.New(loadReport, bellwether.Options{
		TTL:                  time.Second,
		StaleWhileRevalidate: 500 * time.Millisecond,
		StaleIfError:         time.Hour,
	})
	return reports
}

func maxWait(loadReport load) *bellwether.Cache[Report] {
	reports := bellwether.New(loadReport, bellwether.Options{
		TTL:                  time.Second,
		StaleWhileRevalidate: 500 * time.Millisecond,
		StaleIfError:         time.Hour,
		MaxWait:              200 * time.Millisecond,
	})
	return reports
}

func storeAndLocker(loadReport load, store driver.Store, locker driver.Locker) *bellwether.Cache[Report] {
	reports := bellwether.New(loadReport, bellwether.Options{
		TTL:                  time.Second,
		StaleWhileRevalidate: 500 * time.Millisecond,
		StaleIfError:         time.Hour,
		MaxWait:              200 * time.Millisecond,
		Fleet: bellwether.Fleet{
			Namespace: "reports",
			Store:     store,  // redisstore.New(rdb)
			Locker:    locker, // redislock.New(rdb)
		},
	})
	return reports
}

// fleet is the setup of a fleet's processes. The engines are in memory: the program needs no server.
func fleet() setup {
	store, locker := memstore.New(), locallock.New()
	return func(loadReport load) *bellwether.Cache[Report] { return storeAndLocker(loadReport, store, locker) }
}

// A step compares two setups.
type step struct {
	name          string
	lasts         time.Duration
	trouble       trouble
	processes     int
	without, with string // names of the panels
	before, after func() setup
}

var steps = []step{
	{name: "ttl", lasts: 3 * time.Second, processes: 1,
		without: "no cache", with: "TTL",
		before: always(nil), after: always(ttl)},
	{name: "stale-while-revalidate", lasts: 3 * time.Second, processes: 1,
		without: "TTL alone", with: "with StaleWhileRevalidate",
		before: always(ttl), after: always(staleWhileRevalidate)},
	{name: "stale-if-error", lasts: 6 * time.Second, processes: 1, trouble: trouble{from: time.Second, to: 3 * time.Second, fails: true},
		without: "the origin fails for 2 s", with: "with StaleIfError",
		before: always(staleWhileRevalidate), after: always(staleIfError)},
	{name: "max-wait", lasts: 4 * time.Second, processes: 1, trouble: trouble{to: 1500 * time.Millisecond, takes: 1500 * time.Millisecond},
		without: "the first load takes 1.5 s", with: "with MaxWait",
		before: always(staleIfError), after: always(maxWait)},
	{name: "fleet", lasts: 4 * time.Second, processes: 4,
		without: "four processes", with: "with Store and Locker",
		before: always(maxWait), after: fleet},
}

func always(s setup) func() setup { return func() setup { return s } }

func (s step) panels() []Panel {
	return []Panel{s.panel(s.without, s.before()), s.panel(s.with, s.after())}
}

func (s step) panel(name string, set setup) Panel {
	o := newOrigin(s.trouble)
	gets := make([]load, s.processes)
	for i := range gets {
		gets[i] = o.loadReport
		if set != nil {
			cache := set(o.loadReport)
			defer cache.Close()
			gets[i] = cache.Get
		}
	}
	p := run(o, s.lasts, gets)
	p.Name = name
	return p
}
