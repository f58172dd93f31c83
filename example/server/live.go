package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file is the pen behind the live page: its settings, the release of a herd on three strategies,
// and the view of both. strategies.go has the strategies, live.html the page, events.go the connection.

const (
	herdProcesses = 4                // of each strategy, simulated in this process
	herdTime      = 30 * time.Second // a request without an answer by then has failed
	maxPages      = 6
)

// A setting is a control of the live page.
type setting struct {
	name        string
	least, most int
	value       int  // at the start
	live        bool // a change affects a running herd
}

// settings are the controls, in the page's order. Switches are 0 or 1.
var settings = []setting{
	{"herd", 1, 5000, 1000, false},
	{"delay_ms", 0, 3000, 300, true},
	{"capacity", 10, 1000, 100, false},
	{"pages", 1, maxPages, 1, false},
	{"ttl_s", 1, 60, 10, true},
	{"stale_s", 0, 60, 30, true},
	{"origin_fails", 0, 1, 0, true},
	{"locker_down", 0, 1, 0, true},
}

// A pen keeps the herd. All visitors of the page share the settings, and one herd at a time.
type pen struct {
	ctx    context.Context // ends with the pen, and ends every request of a herd
	cancel context.CancelFunc
	wg     sync.WaitGroup // the herds

	settings map[string]*atomic.Int64

	fleet        *fleet // of the first strategy
	plain        []*plainStore
	bellwether   *strategy
	singleflight *strategy
	without      *strategy

	audience listeners
	snapshot func() []byte // the encoded view

	mu   sync.Mutex // guards last, and changes of settings
	last herdRun
}

// A herdRun is a release of the herd, from settings to end.
type herdRun struct {
	number         int // 0: no herd was released yet
	running        bool
	began          time.Time
	took           time.Duration
	settings       map[string]int // at the release
	changed        map[string]int // live settings that changed while it ran
	degradedBefore uint64         // the fleet's count at the release
}

func newPen() *pen {
	p := &pen{settings: map[string]*atomic.Int64{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, s := range settings {
		p.settings[s.name] = &atomic.Int64{}
		p.settings[s.name].Store(int64(s.value))
	}
	p.fleet = newFleet()
	p.bellwether = newStrategy(p, p.fleet.process)

	shared, alone := newPlainStore(), newPlainStore()
	p.plain = []*plainStore{shared, alone}
	p.singleflight = newStrategy(p, shared.collapsing)
	p.without = newStrategy(p, alone.loading)

	p.audience.init()
	p.snapshot = sharedFor(eventPause/2, p.look)
	return p
}

func (p *pen) strategies() []*strategy {
	return []*strategy{p.bellwether, p.singleflight, p.without}
}

func (p *pen) close() {
	p.audience.end()
	p.mu.Lock() // no herd is released from here on, so Wait waits for all
	p.cancel()
	p.mu.Unlock()
	p.wg.Wait()
	p.fleet.close()
}

func (p *pen) get(name string) int { return int(p.settings[name].Load()) }

// set applies the settings of a form. It changes nothing if a setting is unknown or out of range.
func (p *pen) set(form map[string][]string) error {
	values := map[string]int{}
	for name, texts := range form {
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("unknown setting %q", name)
		}
		n, err := strconv.Atoi(texts[len(texts)-1])
		if s := settings[i]; err != nil || n < s.least || n > s.most {
			return fmt.Errorf("%s is %q; want a whole number from %d to %d", name, texts[len(texts)-1], s.least, s.most)
		}
		values[name] = n
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, n := range values {
		p.settings[name].Store(int64(n))
	}
	p.fleet.locker.down.Store(p.get("locker_down") == 1)
	if !p.last.running {
		return nil
	}
	for _, s := range settings {
		if n, given := values[s.name]; given && s.live {
			p.last.change(s.name, n)
		}
	}
	return nil
}

// change records that a setting has changed while the herd runs, even if it changes back.
func (h *herdRun) change(name string, n int) {
	_, noted := h.changed[name]
	if noted || n != h.settings[name] {
		h.changed[name] = n
	}
}

var errHerdRuns = errors.New("a herd is running already")

// release releases a herd on all strategies at the same time.
func (p *pen) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ctx.Err() != nil:
		return errors.New("the server is shutting down")
	case p.last.running:
		return errHerdRuns
	}
	p.last = herdRun{
		number: p.last.number + 1, running: true, began: time.Now(),
		settings: p.values(), changed: map[string]int{}, degradedBefore: p.fleet.stats().Degraded,
	}
	n, pages := p.get("herd"), p.get("pages")
	page := func(i int) int { return i / herdProcesses % pages }
	for _, s := range p.strategies() {
		s.begin(p.last.began, n, p.get("capacity"), page)
	}
	ctx, cancel := context.WithTimeout(p.ctx, herdTime)
	var requests sync.WaitGroup
	for i := range n { // in turns, so no strategy's requests are ahead
		for _, s := range p.strategies() {
			requests.Go(func() { s.request(ctx, i, page(i)) })
		}
	}
	p.wg.Go(func() {
		requests.Wait()
		cancel()
		p.mu.Lock()
		p.last.running, p.last.took = false, time.Since(p.last.began)
		p.mu.Unlock()
	})
	return nil
}

// invalidate drops the pages of all strategies.
func (p *pen) invalidate(ctx context.Context) error {
	for _, s := range p.plain {
		s.clear()
	}
	var urls []string
	for page := range maxPages {
		urls = append(urls, pageURL(page))
	}
	return p.fleet.processes[0].Invalidate(ctx, urls...)
}

func pageURL(page int) string { return fmt.Sprintf("http://herd.test/page/%d", page+1) }

func (p *pen) values() map[string]int {
	values := map[string]int{}
	for _, s := range settings {
		values[s.name] = p.get(s.name)
	}
	return values
}

// A view is the state of the pen for the page.
type view struct {
	Settings map[string]int `json:"settings"`
	LockerUp bool           `json:"locker_up"`
	Pages    []pageView     `json:"pages"`

	// Of the last herd.
	Run          int            `json:"run"`
	Running      bool           `json:"running"`
	Elapsed      int64          `json:"elapsed_ms"`
	Axis         int64          `json:"axis_ms"` // of the charts over time
	MadeWith     map[string]int `json:"made_with"`
	Changed      map[string]int `json:"changed"` // settings, while it ran
	Degraded     uint64         `json:"degraded"`
	Bellwether   strategyView   `json:"bellwether"`
	Singleflight strategyView   `json:"singleflight"`
	Without      strategyView   `json:"without"`
}

func (p *pen) look() view {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.last
	elapsed := h.took
	if h.running {
		elapsed = time.Since(h.began)
	}
	axis := h.axis(elapsed)
	now := p.fleet.stats()
	v := view{
		Settings: p.values(), LockerUp: now.LockerUp && p.get("locker_down") == 0,
		Run: h.number, Running: h.running, Elapsed: elapsed.Milliseconds(), Axis: axis.Milliseconds(),
		MadeWith: h.settings, Changed: maps.Clone(h.changed), Degraded: now.Degraded - h.degradedBefore,
		Bellwether: p.bellwether.look(elapsed, axis), Singleflight: p.singleflight.look(elapsed, axis), Without: p.without.look(elapsed, axis),
	}
	for page := range v.Settings["pages"] {
		v.Pages = append(v.Pages, p.page(page))
	}
	return v
}

// axes are the possible lengths of a time axis.
var axes = []time.Duration{
	time.Second / 2, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second, 6 * time.Second,
	8 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second, herdTime,
}

// axis is the length of the charts' time axis. It grows in steps: a moving axis makes all curves look alike.
func (h *herdRun) axis(elapsed time.Duration) time.Duration {
	if h.number == 0 {
		return axes[0]
	}
	rounds := math.Ceil(float64(h.settings["herd"]) / float64(h.settings["capacity"]))
	slowest := time.Duration(rounds * float64(h.settings["delay_ms"]) * float64(time.Millisecond))
	want := max(slowest*5/4+200*time.Millisecond, elapsed)
	for _, a := range axes {
		if want <= a {
			return a
		}
	}
	return herdTime
}

// A pageView is the state of a page's entry in the fleet's store, and of the first strategy's requests.
type pageView struct {
	State    string `json:"state"` // none, fresh, stale, expired, or error: a failure that answers briefly
	Age      int64  `json:"age_s"`
	Left     int64  `json:"left_s"` // of the state
	Epoch    string `json:"epoch"`  // JavaScript's numbers are too small
	Failures uint32 `json:"failures"`
	Loads    int    `json:"loads"` // running loads
	Waiting  int    `json:"waiting"`
}

func (p *pen) page(page int) pageView {
	e := p.fleet.store.entry(page)
	v := pageView{
		State: "none", Age: int64(e.Age.Seconds()), Failures: e.Failures,
		Loads: p.bellwether.origin.loading(page), Waiting: p.bellwether.waitingFor(page),
	}
	if e.Epoch > 0 {
		v.Epoch = strconv.FormatUint(e.Epoch, 10)
	}
	if e.Kind != driver.KindValue {
		return v
	}
	var end time.Duration
	switch {
	case e.Age < e.TTL && !bytes.Contains(e.Value, []byte(stampField)): // the origin stamps pages only
		v.State, end = "error", e.TTL
	case e.Age < e.TTL:
		v.State, end = "fresh", e.TTL
	case e.Age < e.TTL+e.StaleWhileRevalidate:
		v.State, end = "stale", e.TTL+e.StaleWhileRevalidate
	default:
		v.State, end = "expired", e.Age
	}
	v.Left = int64(math.Ceil((end - e.Age).Seconds()))
	return v
}
