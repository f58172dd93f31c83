package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

// This file is the herd of the live page: a fleet of four processes in
// miniature, an origin behind it, the same origin without it, and the requests
// that are let loose on both. What the page looks like is in live.html, how it
// hears of all this in events.go.

const (
	herdProcesses = 4                // what stands for processes: a Middleware each
	herdTime      = 30 * time.Second // what a herd has not been answered by then, it is not
	maxPages      = 6
)

// A setting is one control of the live page.
type setting struct {
	name        string
	least, most int
	value       int // at the start
}

// settings are the controls, as the page has them. Switches are 0 or 1.
var settings = []setting{
	{"herd", 1, 5000, 1000},
	{"delay_ms", 0, 3000, 300},
	{"capacity", 10, 1000, 100},
	{"pages", 1, maxPages, 1},
	{"ttl_s", 1, 60, 10},
	{"stale_s", 0, 60, 30},
	{"origin_fails", 0, 1, 0},
	{"locker_down", 0, 1, 0},
}

// A pen keeps the herd. Its settings and its one herd at a time are those of all
// who look at the page.
type pen struct {
	ctx    context.Context // ends with the pen; every request of a herd ends with it
	cancel context.CancelFunc
	wg     sync.WaitGroup // the herds

	settings map[string]*atomic.Int64
	store    *ledger
	locker   *switched
	fleet    []*bellwether.Middleware

	audience listeners
	snapshot func() []byte // the encoded view

	mu        sync.Mutex // guards what follows
	run       int        // herds that were released
	running   bool
	began     time.Time
	took      time.Duration
	before    bellwether.Stats // of the fleet, when the last herd was released
	guarded   *side
	unguarded *side
}

// A side is one of the two that are compared.
type side struct {
	origin  *herdOrigin
	handler func(i int) http.Handler // of the herd's request i

	mu       sync.Mutex // guards what follows
	requests int
	waits    []time.Duration
	failed   int
	waiting  [maxPages]int // requests that have no answer yet, by page
}

func newPen() *pen {
	p := &pen{
		settings: map[string]*atomic.Int64{},
		store:    &ledger{Store: memstore.New(), keys: map[string]string{}},
		locker:   &switched{Locker: locallock.New()},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, s := range settings {
		p.settings[s.name] = &atomic.Int64{}
		p.settings[s.name].Store(int64(s.value))
	}
	p.guarded, p.unguarded = &side{origin: newHerdOrigin(p)}, &side{origin: newHerdOrigin(p)}
	var processes []http.Handler
	for range herdProcesses {
		m := bellwether.NewMiddleware(bellwether.HTTPOptions{Options: bellwether.Options{
			Store: p.store, Locker: p.locker,
			// Sooner than by default, because somebody is looking on.
			LeaseTTL: 2 * time.Second, NearTTL: 500 * time.Millisecond,
			NearBytes: 1 << 20,
		}})
		p.fleet = append(p.fleet, m)
		processes = append(processes, m.Handler(p.guarded.origin))
	}
	p.guarded.handler = func(i int) http.Handler { return processes[i%len(processes)] }
	p.unguarded.handler = func(int) http.Handler { return p.unguarded.origin }
	p.audience.init()
	p.snapshot = sharedFor(eventPause/2, p.look)
	return p
}

// close ends the herd and the fleet.
func (p *pen) close() {
	p.audience.end()
	p.mu.Lock() // no herd is let loose from here on, so that Wait knows them all
	p.cancel()
	p.mu.Unlock()
	p.wg.Wait()
	for _, m := range p.fleet {
		m.Close()
	}
}

func (p *pen) get(name string) int { return int(p.settings[name].Load()) }

// set takes the settings of a form. It changes nothing if one of them cannot be
// meant.
func (p *pen) set(form map[string][]string) error {
	values := map[string]int64{}
	for name, texts := range form {
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("unknown setting %q", name)
		}
		n, err := strconv.Atoi(texts[len(texts)-1])
		if s := settings[i]; err != nil || n < s.least || n > s.most {
			return fmt.Errorf("%s is %q; want a whole number from %d to %d", name, texts[len(texts)-1], s.least, s.most)
		}
		values[name] = int64(n)
	}
	for name, n := range values {
		p.settings[name].Store(n)
	}
	p.locker.down.Store(p.get("locker_down") == 1)
	return nil
}

var errHerdRuns = errors.New("a herd is running already")

// release lets a herd loose on both sides.
func (p *pen) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ctx.Err() != nil:
		return errors.New("the server is shutting down")
	case p.running:
		return errHerdRuns
	}
	p.run, p.running, p.began, p.took = p.run+1, true, time.Now(), 0
	p.before = p.stats()
	n, pages := p.get("herd"), p.get("pages")
	ctx, cancel := context.WithTimeout(p.ctx, herdTime)
	var herd sync.WaitGroup
	for _, s := range []*side{p.guarded, p.unguarded} {
		page := func(i int) int { return i / herdProcesses % pages }
		s.begin(n, p.get("capacity"), page)
		for i := range n {
			herd.Go(func() { s.request(ctx, i, page(i)) })
		}
	}
	p.wg.Go(func() {
		herd.Wait()
		cancel()
		p.mu.Lock()
		p.running, p.took = false, time.Since(p.began)
		p.mu.Unlock()
	})
	return nil
}

// invalidate drops the pages from the fleet.
func (p *pen) invalidate(ctx context.Context) error {
	var urls []string
	for page := range maxPages {
		urls = append(urls, pageURL(page))
	}
	return p.fleet[0].Invalidate(ctx, urls...)
}

func pageURL(page int) string { return fmt.Sprintf("http://herd.test/page/%d", page+1) }

// stats is the sum of the fleet's.
func (p *pen) stats() (sum bellwether.Stats) {
	sum.LockerUp = true
	for _, m := range p.fleet {
		s := m.Stats()
		sum.Hits += s.Hits
		sum.Stale += s.Stale
		sum.Degraded += s.Degraded
		sum.LockerUp = sum.LockerUp && s.LockerUp
	}
	return sum
}

// begin counts the requests in, before the first of them runs: what is in flight
// only goes down then.
func (s *side) begin(requests, capacity int, page func(i int) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range requests {
		s.waiting[page(i)]++
	}
	s.requests, s.waits, s.failed = requests, make([]time.Duration, 0, requests), 0
	s.origin.begin(capacity)
}

// request is one of the herd.
func (s *side) request(ctx context.Context, i, page int) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, pageURL(page), nil)
	if err != nil {
		panic(err) // of a constant URL
	}
	began := time.Now()
	w := &sink{header: http.Header{}}
	func() {
		defer func() { // a server would break the connection off
			if recover() != nil {
				w.status = http.StatusBadGateway
			}
		}()
		s.handler(i).ServeHTTP(w, r)
	}()
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[page]--
	s.waits = append(s.waits, took)
	if w.status != http.StatusOK || ctx.Err() != nil {
		s.failed++
	}
}

// A sink is the client's end: it keeps the status.
type sink struct {
	header http.Header
	status int
}

func (w *sink) Header() http.Header { return w.header }
func (w *sink) Flush()              {}
func (w *sink) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(b), nil
}
func (w *sink) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

// A herdOrigin is what is to be kept from being trampled: it answers so many
// requests at one time, as a database with so many connections does, and takes
// the delay for each.
type herdOrigin struct {
	pen *pen

	mu      sync.Mutex // guards what follows
	places  chan struct{}
	calls   int           // since the herd was released
	peak    int           // the most at one time, since then
	running [maxPages]int // calls that have no answer yet, by page
}

func newHerdOrigin(p *pen) *herdOrigin {
	return &herdOrigin{pen: p, places: make(chan struct{}, p.get("capacity"))}
}

func (o *herdOrigin) begin(capacity int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls, o.peak = 0, 0
	// A rebuild that is still under way behind a stale page keeps its place in
	// the old channel.
	o.places = make(chan struct{}, capacity)
}

// enter counts a call in, and returns what counts it out, and its place.
func (o *herdOrigin) enter(page int) (leave func(), places chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	o.running[page]++
	o.peak = max(o.peak, o.sum())
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running[page]--
	}, o.places
}

// sum is how many calls have no answer yet. o.mu is held.
func (o *herdOrigin) sum() (n int) {
	for _, r := range o.running {
		n += r
	}
	return n
}

func (o *herdOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page, err := strconv.Atoi(path.Base(r.URL.Path))
	if err != nil || page < 1 || page > maxPages {
		http.NotFound(w, r)
		return
	}
	leave, places := o.enter(page - 1)
	defer leave()
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	pause(r, time.Duration(o.pen.get("delay_ms"))*time.Millisecond)
	if o.pen.get("origin_fails") == 1 {
		text(w, "")
		w.Header().Del("Cache-Control") // an error says nothing of its freshness
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "the origin fails\n")
		return
	}
	text(w, fmt.Sprintf("max-age=%d, stale-while-revalidate=%[2]d, stale-if-error=%[2]d", o.pen.get("ttl_s"), o.pen.get("stale_s")))
	fmt.Fprintf(w, "page %d\n", page)
}

// A ledger is the fleet's store. It notes which key a page has.
type ledger struct {
	*memstore.Store

	mu   sync.Mutex // guards keys
	keys map[string]string
}

// Claim implements [bellwether.Store].
func (l *ledger) Claim(ctx context.Context, key string) (bellwether.Entry, uint64, error) {
	l.mu.Lock()
	l.keys[path.Base(key)] = key
	l.mu.Unlock()
	return l.Store.Claim(ctx, key)
}

// entry returns what the store has of a page: the zero Entry if nothing.
func (l *ledger) entry(page int) bellwether.Entry {
	l.mu.Lock()
	key, known := l.keys[strconv.Itoa(page+1)]
	l.mu.Unlock()
	if !known {
		return bellwether.Entry{}
	}
	e, _ := l.Get(context.Background(), key) // no entry is the zero Entry
	return e
}

// A switched is the fleet's lock engine, with a switch that kills it: it gives
// no answer then, to those who hold a lease neither.
type switched struct {
	*locallock.Locker
	down atomic.Bool
}

var errSwitchedOff = errors.New("the lock engine is switched off")

// TryAcquire implements [bellwether.Locker].
func (s *switched) TryAcquire(ctx context.Context, key string, ttl time.Duration) (bellwether.Lease, error) {
	if s.down.Load() {
		return nil, errSwitchedOff
	}
	l, err := s.Locker.TryAcquire(ctx, key, ttl)
	if err != nil {
		return nil, err
	}
	return switchedLease{l, s}, nil
}

// Watch implements [bellwether.Watcher].
func (s *switched) Watch(ctx context.Context, held *bellwether.HeldError) (<-chan struct{}, error) {
	if s.down.Load() {
		return nil, errSwitchedOff
	}
	return s.Locker.Watch(ctx, held)
}

type switchedLease struct {
	bellwether.Lease
	s *switched
}

func (l switchedLease) Renew(ctx context.Context, ttl time.Duration) error {
	if l.s.down.Load() {
		return errSwitchedOff
	}
	return l.Lease.Renew(ctx, ttl)
}

func (l switchedLease) Release(ctx context.Context) error {
	if l.s.down.Load() {
		return errSwitchedOff
	}
	return l.Lease.Release(ctx)
}

// buckets are the upper ends of the histogram of waits, in milliseconds; the
// last has none.
var buckets = [...]int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, math.MaxInt}

// A view is what the page is told.
type view struct {
	Run      int            `json:"run"`
	Running  bool           `json:"running"`
	Elapsed  int64          `json:"elapsed_ms"`
	Settings map[string]int `json:"settings"`
	LockerUp bool           `json:"locker_up"`
	// Of the fleet's requests since the herd was released.
	Hits      uint64     `json:"hits"`
	Stale     uint64     `json:"stale"`
	Waited    int        `json:"waited"`
	Degraded  uint64     `json:"degraded"`
	Guarded   sideView   `json:"guarded"`
	Unguarded sideView   `json:"unguarded"`
	Pages     []pageView `json:"pages"`
}

type sideView struct {
	Requests int               `json:"requests"`
	InFlight int               `json:"in_flight"`
	Answered int               `json:"answered"`
	Failed   int               `json:"failed"`
	Calls    int               `json:"calls"`
	Peak     int               `json:"peak"`
	Waits    [len(buckets)]int `json:"waits"`
	P50      float64           `json:"p50_ms"`
	P99      float64           `json:"p99_ms"`
	Max      float64           `json:"max_ms"`
}

type pageView struct {
	State    string `json:"state"`
	Age      int64  `json:"age_s"`
	Left     int64  `json:"left_s"` // of the state
	Epoch    string `json:"epoch"`  // JavaScript's numbers are too small
	Failures uint32 `json:"failures"`
	Rebuilds int    `json:"rebuilds"`
	Waiting  int    `json:"waiting"`
}

// look returns the state of everything.
func (p *pen) look() view {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := view{Run: p.run, Running: p.running, Elapsed: p.took.Milliseconds(), Settings: map[string]int{}}
	if p.running {
		v.Elapsed = time.Since(p.began).Milliseconds()
	}
	for _, s := range settings {
		v.Settings[s.name] = p.get(s.name)
	}
	now := p.stats()
	v.LockerUp = now.LockerUp && v.Settings["locker_down"] == 0
	v.Hits, v.Stale = now.Hits-p.before.Hits, now.Stale-p.before.Stale
	v.Degraded = now.Degraded - p.before.Degraded
	v.Guarded, v.Unguarded = p.guarded.look(), p.unguarded.look()
	v.Waited = max(0, v.Guarded.InFlight+v.Guarded.Answered-int(v.Hits+v.Stale))
	for page := range v.Settings["pages"] {
		v.Pages = append(v.Pages, p.page(page))
	}
	return v
}

func (s *side) look() sideView {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := sideView{Requests: s.requests, Answered: len(s.waits), Failed: s.failed}
	for _, n := range s.waiting {
		v.InFlight += n
	}
	s.origin.mu.Lock()
	v.Calls, v.Peak = s.origin.calls, s.origin.peak
	s.origin.mu.Unlock()
	if len(s.waits) == 0 {
		return v
	}
	sorted := slices.Sorted(slices.Values(s.waits))
	bucket := 0
	for _, w := range sorted {
		for w >= time.Duration(buckets[bucket])*time.Millisecond && bucket < len(buckets)-1 {
			bucket++
		}
		v.Waits[bucket]++
	}
	ms := func(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 10 }
	v.P50, v.P99, v.Max = ms(sorted[len(sorted)/2]), ms(sorted[len(sorted)*99/100]), ms(sorted[len(sorted)-1])
	return v
}

// page returns the state of one page: of its entry from the store, of who is at
// it from the two ends of the herd.
func (p *pen) page(page int) pageView {
	e := p.store.entry(page)
	v := pageView{State: "none", Age: int64(e.Age.Seconds()), Failures: e.Failures}
	if e.Epoch > 0 {
		v.Epoch = strconv.FormatUint(e.Epoch, 10)
	}
	end := e.TTL
	if e.Kind == bellwether.KindValue {
		switch {
		case e.Age < e.TTL:
			v.State = "fresh"
		case e.Age < e.TTL+e.StaleWhileRevalidate:
			v.State, end = "stale", e.TTL+e.StaleWhileRevalidate
		default:
			v.State, end = "expired", e.Age
		}
		v.Left = int64(math.Ceil((end - e.Age).Seconds()))
	}
	o := p.guarded.origin
	o.mu.Lock()
	v.Rebuilds = o.running[page]
	o.mu.Unlock()
	p.guarded.mu.Lock()
	v.Waiting = p.guarded.waiting[page]
	p.guarded.mu.Unlock()
	return v
}
