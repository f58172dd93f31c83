package bellwether_test

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
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

// This file checks the tables of docs/fleets.md with up to 10,000 nodes around one engine, which has
// delays and counts requests and pushes. Bubble time is exact, and random delays are averaged.

const (
	simTrip     = time.Millisecond       // round trip between a node and the engine
	simBuild    = 100 * time.Millisecond // duration of a load
	simTTL      = 2 * time.Second
	simLeaseTTL = 500 * time.Millisecond
)

// A simEngine is store and locker of a simulated fleet.
type simEngine struct {
	store  *memstore.Store
	locker *locallock.Locker
	kind   simKind
	nodes  []*simNode
	over   chan struct{} // closed when the nodes end
}

type simKind string

const (
	simPushes simKind = "push"        // as Redis
	simPolls  simKind = "poll"        // as memcached: nodes poll
	simElects simKind = "one request" // it pushes, and is store and locker at once
)

type simNode struct {
	*bellwether.Cache[string]
	engine  *simEngine
	notices chan driver.Notice
	dead    atomic.Bool

	storeOps, lockOps atomic.Int64
	heard             atomic.Int64 // pushes to the node
}

var errLate = errors.New("no answer")

// under takes half a round trip before an operation, and half after it. A dead node gets no answers.
func under[T any](ctx context.Context, n *simNode, ops *atomic.Int64, do func() (T, error)) (v T, err error) {
	if n.dead.Load() {
		<-ctx.Done()
		return v, ctx.Err()
	}
	ops.Add(1)
	time.Sleep(simTrip / 2)
	if v, err = do(); ctx.Err() != nil {
		return v, errLate
	}
	time.Sleep(simTrip / 2)
	return v, err
}

// publish pushes to all nodes, half a round trip later.
func (e *simEngine) publish(n *driver.Notice) {
	if e.kind == simPolls {
		return
	}
	sent := time.Now()
	time.AfterFunc(simTrip/2, func() {
		for _, node := range e.nodes {
			node.heard.Add(1)
			if n != nil {
				told := *n
				told.Entry.Age += time.Since(sent)
				select {
				case node.notices <- told:
				case <-e.over:
				}
			}
		}
	})
}

type simStore struct{ *simNode }

func (s simStore) Get(ctx context.Context, key string) (driver.Entry, error) {
	return under(ctx, s.simNode, &s.storeOps, func() (driver.Entry, error) { return s.engine.store.Get(ctx, key) })
}

func (s simStore) Claim(ctx context.Context, key string) (entry driver.Entry, epoch uint64, err error) {
	entry, err = under(ctx, s.simNode, &s.storeOps, func() (entry driver.Entry, err error) {
		entry, epoch, err = s.engine.store.Claim(ctx, key)
		return entry, err
	})
	return entry, epoch, err
}

func (s simStore) Commit(ctx context.Context, key string, e driver.Entry) error {
	return s.write(ctx, key, e, func() error { return s.engine.store.Commit(ctx, key, e) })
}

func (s simStore) write(ctx context.Context, key string, e driver.Entry, commit func() error) error {
	_, err := under(ctx, s.simNode, &s.storeOps, func() (struct{}, error) {
		err := commit()
		if err == nil {
			s.engine.publish(&driver.Notice{Key: key, Epoch: e.Epoch, Entry: e, Made: time.Now()})
		}
		return struct{}{}, err
	})
	return err
}

func (s simStore) Invalidate(ctx context.Context, key string) error {
	_, err := under(ctx, s.simNode, &s.storeOps, func() (struct{}, error) { return struct{}{}, s.engine.store.Invalidate(ctx, key) })
	return err
}

type simPushingStore struct{ simStore }

func (s simPushingStore) Notify(ctx context.Context, f func(driver.Notice)) {
	for {
		select {
		case n := <-s.notices:
			f(n)
		case <-ctx.Done():
			return
		}
	}
}

type simLocker struct{ *simNode }

func (l simLocker) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	lease, err := under(ctx, l.simNode, &l.lockOps, func() (driver.Lease, error) { return l.engine.locker.TryAcquire(ctx, key, ttl) })
	if err != nil {
		return nil, err
	}
	return &simLease{l.simNode, lease}, nil
}

// A simPushingLocker pushes releases over a standing subscription, so Watch sends no request.
type simPushingLocker struct{ simLocker }

func (l simPushingLocker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	ended, err := l.engine.locker.Watch(ctx, held)
	return l.told(ctx, ended), err
}

// told returns a channel that is closed half a round trip after ended.
func (l simPushingLocker) told(ctx context.Context, ended <-chan struct{}) <-chan struct{} {
	told := make(chan struct{})
	go func() {
		select {
		case <-ended:
			time.Sleep(simTrip / 2)
			close(told)
		case <-ctx.Done():
		}
	}()
	return told
}

// A simElector is one engine for both. Its requests count as the store's.
type simElector struct {
	simPushingStore
	locker simPushingLocker
}

func (e simElector) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return e.locker.TryAcquire(ctx, key, ttl)
}

func (e simElector) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	ended, err := e.engine.store.Watch(ctx, held)
	return e.locker.told(ctx, ended), err
}

func (e simElector) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	return under(ctx, e.simNode, &e.storeOps, func() (driver.Election, error) {
		won, err := e.engine.store.Elect(ctx, key, past, ttl)
		if won.Lease != nil {
			won.Lease = &simLease{e.simNode, won.Lease}
		}
		return won, err
	})
}

func (e simElector) CommitAndRelease(ctx context.Context, key string, entry driver.Entry, lease driver.Lease) error {
	return e.write(ctx, key, entry, func() error {
		return e.engine.store.CommitAndRelease(ctx, key, entry, lease.(*simLease).lease)
	})
}

type simLease struct {
	node  *simNode
	lease driver.Lease
}

func (l *simLease) Renew(ctx context.Context, ttl time.Duration) error {
	_, err := under(ctx, l.node, &l.node.lockOps, func() (struct{}, error) { return struct{}{}, l.lease.Renew(ctx, ttl) })
	return err
}

func (l *simLease) Release(ctx context.Context) error {
	_, err := under(ctx, l.node, &l.node.lockOps, func() (struct{}, error) {
		err := l.lease.Release(ctx)
		if err == nil {
			l.node.engine.publish(nil)
		}
		return struct{}{}, err
	})
	return err
}

// newSimFleet starts n nodes, which are closed at the end of the test. load gets its node.
func newSimFleet(t *testing.T, n int, kind simKind, load func(ctx context.Context, node *simNode, key string) (string, error), o bellwether.Options) *simEngine {
	t.Helper()
	e := &simEngine{store: memstore.New(), locker: locallock.New(), kind: kind, over: make(chan struct{})}
	for range n {
		node := &simNode{engine: e, notices: make(chan driver.Notice, 4)}
		o.Fleet.Store, o.Fleet.Locker, o.Fleet.Namespace = simStore{node}, simLocker{node}, "test"
		store, locker := simPushingStore{simStore{node}}, simPushingLocker{simLocker{node}}
		switch kind {
		case simPushes:
			o.Fleet.Store, o.Fleet.Locker = store, locker
		case simElects:
			o.Fleet.Store, o.Fleet.Locker, o.Fleet.Engine = nil, nil, simElector{store, locker}
		}
		node.Cache = bellwether.New(func(ctx context.Context, key string) (string, error) { return load(ctx, node, key) }, o)
		e.nodes = append(e.nodes, node)
	}
	t.Cleanup(func() {
		close(e.over)
		var closed sync.WaitGroup
		for _, node := range e.nodes {
			closed.Go(func() { node.Close() })
		}
		closed.Wait()
		synctest.Wait()
	})
	return e
}

type simEvent string

const (
	simExpires simEvent = "expires"
	simFails   simEvent = "expires, the load fails"
	simDies    simEvent = "is asked for first, the holder dies"
)

// befall has n nodes ask for one key at one moment, and returns the row of the table.
func befall(t *testing.T, kind simKind, event simEvent, n int) []string {
	t.Helper()
	var loads, storeOps, lockOps, heard int64
	var waited []time.Duration
	rounds := max(1, 500/n)
	for range rounds {
		synctest.Test(t, func(t *testing.T) {
			var begun atomic.Int64
			var trouble atomic.Bool // for the next load
			e := newSimFleet(t, n, kind, func(ctx context.Context, node *simNode, _ string) (string, error) {
				begun.Add(1)
				troubled := trouble.Swap(false)
				if troubled && event == simDies {
					node.dead.Store(true)
					<-ctx.Done()
					return "", ctx.Err()
				}
				time.Sleep(simBuild)
				if troubled {
					return "", errOrigin
				}
				return "v", nil
			}, bellwether.Options{TTL: simTTL, Fleet: bellwether.Fleet{LeaseTTL: simLeaseTTL}, Limits: bellwether.Limits{NearBytes: 1 << 16}})
			if event != simDies {
				for _, nodes := range [][]*simNode{e.nodes[:1], e.nodes[1:]} { // one loads, and the others read the store
					var callers sync.WaitGroup
					for _, node := range nodes {
						callers.Go(func() { node.Get(t.Context(), "k") })
					}
					callers.Wait()
				}
				time.Sleep(simTTL)
			}
			synctest.Wait()
			begun.Store(0)
			for _, node := range e.nodes {
				node.storeOps.Store(0)
				node.lockOps.Store(0)
				node.heard.Store(0)
			}
			trouble.Store(event != simExpires)

			ctx, gone := context.WithTimeout(t.Context(), 5*simLeaseTTL) // the dead node's caller leaves
			defer gone()
			took, errs := make([]time.Duration, n), make([]error, n)
			var callers sync.WaitGroup
			start := time.Now()
			for i, node := range e.nodes {
				callers.Go(func() {
					_, errs[i] = node.Get(ctx, "k")
					took[i] = time.Since(start)
				})
			}
			callers.Wait()
			time.Sleep(simTrip) // the lease is released after the callers' answers
			synctest.Wait()
			loads += begun.Load()
			for i, node := range e.nodes {
				storeOps += node.storeOps.Load()
				lockOps += node.lockOps.Load()
				heard += node.heard.Load()
				if node.dead.Load() {
					continue
				}
				if waited = append(waited, took[i]); (errs[i] != nil) != (event == simFails) {
					t.Fatalf("node %d of %d: %v", i, n, errs[i])
				}
			}
		})
	}
	slices.Sort(waited)
	per := func(x int64) string { return strconv.FormatFloat(float64(x)/float64(n*rounds), 'f', 2, 64) }
	ms := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1000, 'f', 0, 64) }
	return []string{
		string(kind), string(event), strconv.Itoa(n),
		strconv.FormatFloat(float64(loads)/float64(rounds), 'f', -1, 64),
		per(storeOps), per(lockOps), per(heard),
		strconv.FormatFloat(float64(storeOps+lockOps+heard)/float64(rounds), 'f', 0, 64),
		ms(waited[len(waited)/2]), ms(waited[len(waited)-1]),
	}
}

// drain has the keys expire within a second, and then asks each process for all. Refused and stale
// callers ask again each second. It returns the row of the table.
func drain(t *testing.T, processes, keys int, each time.Duration, what string, o bellwether.Options) []string {
	t.Helper()
	const maxRebuilds = 128
	o.Limits.MaxRebuilds = maxRebuilds // exact, unlike the default
	var loads, running, most, refused, asked, storeOps, lockOps atomic.Int64
	var longest, drained time.Duration
	synctest.Test(t, func(t *testing.T) {
		build := time.Duration(0)
		o.TTL = time.Minute
		loaded := make([]atomic.Bool, keys)
		e := newSimFleet(t, processes, simPushes, func(_ context.Context, _ *simNode, key string) (string, error) {
			loads.Add(1)
			for n := running.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			time.Sleep(build)
			running.Add(-1)
			i, _ := strconv.Atoi(key)
			loaded[i].Store(true)
			return "v", nil
		}, o)
		var callers sync.WaitGroup
		for i := range keys { // within a second
			callers.Go(func() { e.nodes[0].Get(t.Context(), strconv.Itoa(i)) })
			time.Sleep(time.Second / time.Duration(keys))
		}
		callers.Wait()
		time.Sleep(o.TTL)
		synctest.Wait()
		for i := range loaded {
			loaded[i].Store(false)
		}
		for _, node := range e.nodes {
			node.storeOps.Store(0)
			node.lockOps.Store(0)
		}
		build = each
		loads.Store(0)
		most.Store(0)

		var mu sync.Mutex // guards longest
		start := time.Now()
		for i := range keys {
			for _, node := range e.nodes {
				callers.Go(func() {
					for {
						began := time.Now()
						_, err := node.Get(t.Context(), strconv.Itoa(i))
						asked.Add(1)
						took := time.Since(began)
						mu.Lock()
						longest = max(longest, took)
						mu.Unlock()
						switch {
						case errors.Is(err, bellwether.ErrOverloaded):
							refused.Add(1)
						case err != nil:
							t.Errorf("key %d: %v", i, err)
							return
						case loaded[i].Load():
							return
						}
						time.Sleep(time.Second)
					}
				})
			}
		}
		for drained == 0 {
			time.Sleep(10 * time.Millisecond)
			if loads.Load() >= int64(keys) && running.Load() == 0 {
				drained = time.Since(start)
			}
		}
		callers.Wait()
		for _, node := range e.nodes {
			storeOps.Add(node.storeOps.Load())
			lockOps.Add(node.lockOps.Load())
		}
	})
	if bound := int64(maxRebuilds * processes); most.Load() > bound {
		t.Errorf("%d processes: %d loads at one time, with a bound of %d", processes, most.Load(), bound)
	}
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) }
	per := func(n int64) string { return strconv.FormatFloat(float64(n)/float64(keys*processes), 'f', 1, 64) }
	return []string{
		what, strconv.Itoa(processes), strconv.Itoa(maxRebuilds * processes), strconv.FormatInt(most.Load(), 10),
		strconv.FormatInt(loads.Load(), 10), seconds(drained), seconds(longest),
		per(asked.Load()), strconv.FormatFloat(100*float64(refused.Load())/float64(asked.Load()), 'f', 0, 64), per(storeOps.Load()), per(lockOps.Load()),
	}
}

var drains = map[string]bellwether.Options{
	"`MaxQueued` 10,000":                    {Limits: bellwether.Limits{MaxQueued: 10_000}},
	"`MaxQueued` zero":                      {},
	"`MaxQueued` zero, stale may be served": {StaleWhileRevalidate: time.Hour},
}

const (
	simHeader   = "| engine | the key | nodes | rebuilds | store operations per node | lock operations per node | pushes per node | messages in all | half waited, ms | all waited, ms |"
	drainHeader = "| | processes | bound | most at one time | loads | drained after, s | longest wait, s | calls per key and process | of these refused, % | store operations per key and process | lock operations per key and process |"
)

// tableUnder returns the rows of the table with this header in docs/fleets.md.
func tableUnder(t *testing.T, header string) (rows [][]string) {
	t.Helper()
	b, err := os.ReadFile("docs/fleets.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(b), "\n"+header+"\n")
	for line := range strings.Lines(after) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(cells[0], "---") {
			rows = append(rows, cells)
		}
	}
	if !found || len(rows) == 0 {
		t.Fatalf("docs/fleets.md has no table with the header\n%s", header)
	}
	return rows
}

// holdRow compares a document's row with the measured row: words exactly, numbers within 5 % or a
// unit of the last digit, and "≤" as a bound.
func holdRow(t *testing.T, says, measured []string) {
	t.Helper()
	ok := len(says) == len(measured)
	for i := 0; ok && i < len(says); i++ {
		b, errB := strconv.ParseFloat(measured[i], 64)
		if most, is := strings.CutPrefix(says[i], "≤ "); is {
			a, errA := strconv.ParseFloat(most, 64)
			ok = errA == nil && errB == nil && b <= a
			continue
		}
		a, errA := strconv.ParseFloat(strings.ReplaceAll(says[i], ",", ""), 64)
		if errA != nil || errB != nil {
			ok = says[i] == measured[i]
			continue
		}
		unit := 0.0
		if _, fraction, has := strings.Cut(says[i], "."); has {
			unit = math.Pow(10, -float64(len(fraction)))
		}
		ok = math.Abs(a-b) <= max(unit*1.01, 0.05*math.Abs(a))
	}
	if !ok {
		t.Errorf("docs/fleets.md says otherwise than is measured:\nsays     | %s |\nmeasured | %s |", strings.Join(says, " | "), strings.Join(measured, " | "))
	}
}

// holdFleet checks the first table's rows that of accepts.
func holdFleet(t *testing.T, of func(nodes int, kind simKind) bool) {
	t.Helper()
	held := 0
	for _, row := range tableUnder(t, simHeader) {
		n := number(t, row[2])
		if kind := simKind(row[0]); of(n, kind) {
			held++
			t.Run(strings.Join(row[:3], ", "), func(t *testing.T) {
				t.Parallel()
				holdRow(t, row, befall(t, kind, simEvent(row[1]), n))
			})
		}
	}
	if held == 0 {
		t.Error("docs/fleets.md has no such rows")
	}
}

func number(t *testing.T, cell string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.ReplaceAll(cell, ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The rows of docs/fleets.md that are small enough for the race detector hold.
func TestDocument_Fleet(t *testing.T) {
	holdFleet(t, func(nodes int, _ simKind) bool { return inRace(nodes) })
}

func inRace(nodes int) bool { return nodes <= 10 }

// A node's requests and pushes do not grow with the fleet. Two polling nodes make fewer, which
// shows in a small fleet: the holder, and the last holder, which knows the build time.
func TestDocument_FleetIsConstant(t *testing.T) {
	small := map[string][]string{}
	sizes := map[string]int{}
	for _, row := range tableUnder(t, simHeader) {
		what := row[0] + ", " + row[1]
		sizes[what]++
		if small[what] == nil {
			small[what] = row
			continue
		}
		if row[3] != small[what][3] {
			t.Errorf("%s: %s rebuilds with %s nodes, %s with %s", what, row[3], row[2], small[what][3], small[what][2])
		}
		for i := 4; i < 7; i++ {
			few, _ := strconv.ParseFloat(small[what][i], 64)
			many, err := strconv.ParseFloat(row[i], 64)
			if nodes := float64(number(t, small[what][2])); err != nil || many > few*nodes/(nodes-2)*1.02 {
				t.Errorf("%s: %s with %s nodes, %s with %s", what, row[i], row[2], small[what][i], small[what][2])
			}
		}
	}
	for _, event := range []simEvent{simExpires, simFails, simDies} {
		for _, way := range []simKind{simPushes, simPolls, simElects} {
			if what := string(way) + ", " + string(event); sizes[what] != 3 {
				t.Errorf("%d rows of %q, want 10, 100 and 10,000 nodes", sizes[what], what)
			}
		}
	}
}

// The bound on the origin's loads holds for keys that expire together, with any queue and windows.
func TestDrain(t *testing.T) {
	for what, o := range drains {
		for _, processes := range []int{1, 3} {
			// A load takes longer than a process's elections for all keys, so its last slot gets a key too.
			const keys = 500
			row := drain(t, processes, keys, 2*keys*simTrip, what, o)
			if row[3] != row[2] || row[4] != "500" {
				t.Errorf("%s: %q, want 500 loads, as many at a time as the bound", what, row)
			}
		}
	}
}
