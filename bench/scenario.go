package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file has the scenarios, and one strategy's way through a scenario.

// A size is the extent of a run.
type size struct {
	Name      string
	Processes int
	Callers   int           // in each process; all come at the same time
	Load      time.Duration // the duration of a load
	Slow      time.Duration // the duration at a slow origin
	TTL       time.Duration // in scenarios with expiries
	Lease     time.Duration
	Drive     time.Duration // how long callers keep coming
	Rate      float64       // callers per second in each process
	ZipfKeys  int
	Keys      int // number of keys that expire at once
	Wakes     int // number of keys for the wake lag
	Misses    int // number of keys that one process asks for, one after another
	Rounds    int
	Brief     bool          // long scenarios leave strategies out
	Limit     time.Duration // a longer run is an error; 0: no limit
}

var (
	quick = size{
		Name: "quick", Processes: 2, Callers: 50, Load: 30 * time.Millisecond, Slow: 120 * time.Millisecond,
		TTL: 100 * time.Millisecond, Lease: 300 * time.Millisecond, Drive: 160 * time.Millisecond, Rate: 200,
		ZipfKeys: 1000, Keys: 1000, Wakes: 15, Misses: 200, Rounds: 1, Brief: true, Limit: time.Minute,
	}
	full = size{
		Name: "full", Processes: 8, Callers: 250, Load: 310 * time.Millisecond, Slow: 3 * time.Second,
		TTL: 2 * time.Second, Lease: 2 * time.Second, Drive: 12 * time.Second, Rate: 100,
		ZipfKeys: 20_000, Keys: 1000, Wakes: 40, Misses: 5000, Rounds: 5,
	}
)

// caveat is the remark on bounds in a run of another size than full.
func (s size) caveat() string {
	if s.Processes == full.Processes && s.Callers == full.Callers && s.Load == full.Load {
		return ""
	}
	return fmt.Sprintf(" they are for -full, of %d processes x %d callers and a load of %v", full.Processes, full.Callers, full.Load)
}

// A scenario is an event for a herd.
type scenario struct {
	name    string
	what    string
	needs   trait      // strategies without it are left out
	not     trait      // strategies with it are left out
	brief   []strategy // the strategies of a quick run; nil: all
	run     func(x *trial) error
	columns []column[measurement] // of its table; nil: the herd's
}

func (s scenario) shows() []column[measurement] {
	if s.columns != nil {
		return s.columns
	}
	return columns
}

// inBrief has one strategy of each sort, for scenarios that take long.
var inBrief = []strategy{
	noProtection, onlySingleflight, addMutex, redislockAside, bellwetherRedis, bellwetherMemcached, bellwetherEtcd,
}

// knownScenario is a cold key whose build has a length that the processes know.
const knownScenario = "cold, known load"

var scenarios = []scenario{
	{
		name: "cold", what: "all callers of all processes ask for one key that nobody has",
		run: func(x *trial) error { x.load(x.size.Load); return x.burst(nil) },
	},
	{
		name: knownScenario, what: "as cold, in processes that have waited for a load as long before",
		needs: locks,
		brief: []strategy{bellwetherRedis, bellwetherMemcached},
		run: func(x *trial) error {
			x.load(x.size.Load)
			x.warmUp = x.size.Load
			return x.burst(nil)
		},
	},
	{
		name: wakeScenario, what: fmt.Sprintf("the times are from the end of a load to the last of the %d callers who wait for it in another process", wakeCallers),
		needs: locks,
		brief: []strategy{bellwetherRedis, bellwetherMemcached, bellwetherEtcd},
		run:   func(x *trial) error { x.load(x.size.Load); return x.wakes() },
	},
	{
		name: "expiry", what: "callers keep coming to one key, whose value expires again and again; nothing may be served stale",
		not: yardstick,
		run: func(x *trial) error { x.load(x.size.Load); x.policy.TTL = x.size.TTL; return x.expiries(0) },
	},
	{
		name: "stale", what: "the same, where a value may be served stale while it is rebuilt",
		needs: staleServes,
		run: func(x *trial) error {
			x.load(x.size.Load)
			x.policy.TTL, x.policy.Stale = x.size.TTL, 10*x.size.TTL
			return x.expiries(0)
		},
	},
	{
		name: "slow origin", what: "as cold, with a load that takes long, and callers who come one after another while it does",
		not:   yardstick,
		brief: inBrief,
		run: func(x *trial) error {
			x.load(x.size.Slow)
			return x.drive(func(o *order) { o.For, o.Rate = x.size.Slow*3/2, x.size.Rate }, 1)
		},
	},
	{
		name: "failing origin", what: "every load fails; all calls do, and the question is how often the origin is asked",
		not: yardstick,
		run: func(x *trial) error {
			x.load(x.size.Load)
			x.behaviour.Fails = true
			return x.drive(func(o *order) { o.For, o.Rate = x.size.Drive, x.size.Rate }, 1)
		},
	},
	{
		name: "first caller leaves", what: "as cold, but one caller has come a little before all others and leaves in the middle of the load",
		not: yardstick,
		run: func(x *trial) error {
			x.load(x.size.Load)
			return x.burst(func(i int, o *order) {
				if i == 0 {
					o.First, o.Leave = x.size.Load/4, x.size.Load*3/4
				}
			})
		},
	},
	{
		name: "holder killed", what: "as cold, but the process that loads first is killed in the middle of it; the waits are those of the processes that live",
		needs: locks,
		brief: inBrief,
		run:   func(x *trial) error { x.load(x.size.Load); return x.killHolder() },
	},
	{
		name: "long load", what: "as cold, with a load of two and a half leases",
		needs: locks,
		brief: inBrief,
		run: func(x *trial) error {
			// Some count leases in whole seconds: a shorter load would be no long load for them.
			x.policy.Lease = max(x.size.Lease, 400*time.Millisecond)
			x.load(x.policy.Lease * 5 / 2)
			return x.burst(nil)
		},
	},
	{
		name: "store down", what: "the engine has been killed, and callers keep coming to one key, whose value expires",
		not:   yardstick,
		brief: inBrief,
		run: func(x *trial) error {
			if len(x.strategy.engines) == 0 || !x.bench.engines.own(x.strategy.engines) {
				return errNotApplicable
			}
			x.load(x.size.Load)
			x.policy.TTL = x.size.TTL
			x.down = true
			return x.expiries(0)
		},
	},
	{
		name: "1000 keys", what: "many keys have expired at the same time, and all are asked for by all processes at once",
		brief: inBrief,
		run: func(x *trial) error {
			x.load(x.size.Load / 5)
			return x.burst(func(_ int, o *order) { o.Keys, o.Callers = x.size.Keys, x.size.Keys })
		},
	},
	{
		name: missScenario, what: "one process asks for one cold key after another; the figures are of one miss, and the processor time is of that process",
		not:     yardstick,
		brief:   []strategy{noProtection, rueidisAside, bellwetherRedis, bellwetherRedisPair, bellwetherMemcached},
		columns: missColumns,
		run:     func(x *trial) error { x.load(0); return x.misses() },
	},
	{
		name: "zipf", what: "callers keep coming to many keys, some of which are preferred (Zipf, exponent 1.1); a process can keep a tenth of them",
		not: yardstick,
		run: func(x *trial) error {
			x.load(x.size.Load / 10)
			x.policy.Near = x.size.ZipfKeys / 10
			return x.drive(func(o *order) {
				o.For, o.Rate, o.Keys, o.Zipf = x.size.Drive, x.size.Rate*5, x.size.ZipfKeys, 1.1
			}, 0)
		},
	},
}

var errNotApplicable = fmt.Errorf("not applicable")

// A trial is a strategy in one scenario, once.
type trial struct {
	bench     *herdBench
	size      size
	scenario  scenario
	strategy  strategy
	policy    policy
	behaviour behaviour
	warmUp    time.Duration // the duration of open's load
	round     int
	log       string
	asking    int  // number of asking processes
	down      bool // the engines are killed before it begins
	trace     bool

	killed  map[int]time.Time
	reports []report
	events  []event
	m       measurement
}

func (x *trial) load(d time.Duration) { x.behaviour.Load = d }

// key is the prefix of all counted keys. Other keys are for the warm-up.
func (x *trial) key() string { return fmt.Sprintf("k%d-%d", os.Getpid(), x.bench.trials) }

// patience is a caller's patience: longer than any protocol should take.
func (x *trial) patience() time.Duration {
	return 4*x.behaviour.Load + 2*x.policy.Lease + 2*time.Second
}

func (x *trial) order(do string) order {
	return order{
		Do: do, Strategy: x.strategy.name, Policy: x.policy, Log: x.log, Behaviour: x.behaviour,
		Key: x.key(), Keys: 1, Patience: x.patience(), Trace: x.trace,
		Callers: x.size.Callers, Seed: uint64(x.round),
	}
}

// open opens the strategy in all processes. They wait for a key that does not count, to be connected.
func (x *trial) open() error {
	if x.strategy.has(wholeSeconds) && x.policy.TTL%time.Second != 0 {
		return errNotApplicable
	}
	if _, err := x.bench.fleet.all(func(int) order { return x.order("open") }); err != nil {
		return err
	}
	at := time.Now().Add(10 * time.Millisecond)
	err := x.run("burst", func(_ int, o *order) {
		o.Key, o.At, o.Callers = "warm-up-"+x.key(), at, 3
		o.Behaviour = behaviour{Load: x.warmUp}
	})
	time.Sleep(30 * time.Millisecond) // a subscription begins
	return err
}

// run has all processes make the calls of an order, and report when all are done.
func (x *trial) run(do string, change func(i int, o *order)) error {
	_, err := x.bench.fleet.all(func(i int) order {
		o := x.order(do)
		change(i, &o)
		return o
	})
	if err != nil {
		return err
	}
	x.reports, err = x.bench.fleet.all(func(int) order { return order{Do: "report"} })
	return err
}

// measure runs counted, and records its cost.
func (x *trial) measure(expiries float64, counted func() error) error {
	count := func() (n int, err error) {
		if x.down {
			return 0, nil
		}
		return x.bench.engines.commands(x.strategy.engines)
	}
	before, err := count()
	if err != nil {
		return err
	}
	if err := counted(); err != nil {
		return err
	}
	after, err := count()
	if err != nil {
		return err
	}
	if x.events, err = readLog(x.log, x.key()); err != nil {
		return err
	}
	h := newHistogram()
	for _, r := range x.reports {
		waits, err := hdrhistogram.Decode(r.Waits)
		if err != nil {
			return err
		}
		h.Merge(waits)
		x.m.Calls += r.Calls
		x.m.Failures += r.Failures
		x.m.Wrong += r.Wrong
		x.m.Hung += r.Hung
		x.m.Waiting += r.Waiting.Seconds()
		x.m.Error = cmp.Or(x.m.Error, r.Error)
	}
	var keys int
	x.m.Loads, x.m.Duplicates, keys, x.m.Most = loadsIn(x.events, x.killed)
	if expiries == 0 {
		expiries = float64(keys) // each requested key had to be loaded once
	}
	x.m.Expiries = expiries
	x.m.LoadsPerExpiry = float64(x.m.Loads) / max(1, expiries)
	x.m.waits(h)
	if x.down {
		x.m.Commands = -1
	} else {
		x.m.Commands = float64(after-before) / float64(x.asking)
	}
	return nil
}

// burst releases all callers at the same time, for a key unless change sets more.
func (x *trial) burst(change func(i int, o *order)) error {
	if err := x.open(); err != nil {
		return err
	}
	at := time.Now().Add(50 * time.Millisecond)
	all := func(i int, o *order) {
		o.At = at
		if change != nil {
			change(i, o)
		}
	}
	probe := x.order("burst")
	all(0, &probe)
	return x.measure(float64(probe.Keys), func() error { return x.run("burst", all) })
}

// drive has callers that keep coming.
func (x *trial) drive(change func(o *order), expiries float64) error {
	if err := x.open(); err != nil {
		return err
	}
	return x.driveOpen(change, expiries)
}

func (x *trial) driveOpen(change func(o *order), expiries float64) error {
	at := time.Now().Add(20 * time.Millisecond)
	return x.measure(expiries, func() error {
		return x.run("drive", func(i int, o *order) {
			o.At, o.Seed = at, uint64(x.round*1000+i)
			change(o)
		})
	})
}

// expiries has callers that keep coming to a value loaded now, for d or the size's Drive.
func (x *trial) expiries(d time.Duration) error {
	d = cmp.Or(d, x.size.Drive)
	if err := x.open(); err != nil {
		return err
	}
	// In all processes, also for strategies without a shared store. This load does not count.
	at := time.Now().Add(10 * time.Millisecond)
	err := x.run("burst", func(_ int, o *order) { o.At, o.Callers, o.Behaviour = at, 1, behaviour{} })
	if err != nil {
		return err
	}
	if x.down {
		x.bench.engines.kill(x.strategy.engines)
	}
	if err := os.Truncate(x.log, 0); err != nil {
		return err
	}
	// One expiry after a TTL, and one after each TTL and load: a value is fresh from its load's end.
	times := 1 + max(0, (d-x.policy.TTL)/(x.policy.TTL+x.behaviour.Load))
	return x.driveOpen(func(o *order) { o.For, o.Rate = d, x.size.Rate }, float64(times))
}

// killHolder is burst with a kill of the process of the first load.
func (x *trial) killHolder() error {
	if err := x.open(); err != nil {
		return err
	}
	x.killed = map[int]time.Time{}
	at := time.Now().Add(50 * time.Millisecond)
	return x.measure(1, func() error {
		done := make(chan error, 1)
		go func() {
			time.Sleep(time.Until(at.Add(x.behaviour.Load / 2)))
			done <- x.killFirst()
		}()
		err := x.run("burst", func(_ int, o *order) { o.At = at })
		return cmp.Or(<-done, err)
	})
}

func (x *trial) killFirst() error {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		events, err := readLog(x.log, x.key())
		if err != nil {
			return err
		}
		if len(events) == 0 {
			continue
		}
		i := slices.IndexFunc(x.bench.fleet.workers, func(w *worker) bool { return w.cmd.Process.Pid == events[0].pid })
		x.killed[events[0].pid] = time.Now()
		x.bench.fleet.workers[i].kill()
		return nil
	}
	return fmt.Errorf("%s: nobody has loaded", x.strategy.name)
}

// finish prepares the fleet for the next trial.
func (x *trial) finish() error {
	if x.down {
		if err := x.bench.engines.restart(x.strategy.engines); err != nil {
			return err
		}
	}
	if x.m.Hung > 0 || x.down {
		// Hung callers are still there, or refused pools wait: the next trial gets new processes.
		for _, w := range x.bench.fleet.workers {
			w.kill()
		}
	}
	return x.bench.fleet.mend()
}

func (s scenario) applies(to strategy, in size) bool {
	if in.Brief && s.brief != nil && !slices.ContainsFunc(s.brief, func(b strategy) bool { return b.name == to.name }) {
		return false
	}
	return to.has(s.needs) && to.traits&s.not == 0
}
