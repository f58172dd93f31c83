package main

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// This file is the three strategies of the live page: Bellwether, singleflight in each process, and
// neither. Each is a fleet with its own store and origin, the same herd, and the same count of outcomes.

// A strategy answers a herd's requests by its own processes.
type strategy struct {
	origin    *herdOrigin
	processes []http.Handler

	mu       sync.Mutex // guards the fields below
	released time.Time
	requests int
	outcomes [outcomeCount]int
	waits    [outcomeCount][]time.Duration // from a request's own start to its answer
	ends     []time.Duration               // of the requests, after the release; ascending
	waiting  [maxPages]int                 // requests without an answer yet, by page
}

// An outcome is the end of one request.
type outcome int

const (
	freshAtOnce  outcome = iota // a fresh response was there before the request
	staleAtOnce                 // a stale response was there before the request
	waited                      // the response was loaded while the request waited
	failed                      // an error instead of a page
	timedOut                    // no answer within herdTime
	outcomeCount = iota
)

// newStrategy makes a strategy of processes with an origin of their own.
func newStrategy(p *pen, process func(origin http.Handler) http.Handler) *strategy {
	s := &strategy{origin: newHerdOrigin(p)}
	for range herdProcesses {
		s.processes = append(s.processes, process(s.origin))
	}
	return s
}

// begin prepares for a herd. All requests count as waiting at first, so their number only falls.
func (s *strategy) begin(released time.Time, requests, capacity int, page func(i int) int) {
	s.origin.begin(capacity)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released, s.requests = released, requests
	s.outcomes = [outcomeCount]int{}
	s.waits, s.ends = [outcomeCount][]time.Duration{}, make([]time.Duration, 0, requests)
	for i := range requests {
		s.waiting[page(i)]++
	}
}

// request makes the herd's request i, and counts its outcome.
func (s *strategy) request(ctx context.Context, i, page int) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, pageURL(page), nil)
	if err != nil {
		panic(err) // the URL is constant
	}
	began := time.Now()
	got := ask(s.processes[i%len(s.processes)], r)
	ended := time.Now()
	result := outcomeOf(ctx, got, began)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[page]--
	s.outcomes[result]++
	s.waits[result] = append(s.waits[result], ended.Sub(began))
	s.ends = append(s.ends, ended.Sub(s.released))
}

// outcomeOf compares the origin's stamp with the request's start, alike for all strategies.
func outcomeOf(ctx context.Context, got *recording, began time.Time) outcome {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return timedOut
	case ctx.Err() != nil || got.status != http.StatusOK:
		return failed
	}
	age := began.Sub(got.loadedAt())
	switch {
	case age < 0:
		return waited
	case age < got.maxAge():
		return freshAtOnce
	default:
		return staleAtOnce
	}
}

func (s *strategy) waitingFor(page int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[page]
}

// buckets are the upper ends of the histogram of waits, in milliseconds. The last has no end.
var buckets = [...]int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, math.MaxInt}

type histogram [len(buckets)]int

func (h *histogram) add(wait time.Duration) {
	i := 0
	for i < len(buckets)-1 && wait >= time.Duration(buckets[i])*time.Millisecond {
		i++
	}
	h[i]++
}

// A strategyView is a strategy's part of the last herd.
type strategyView struct {
	Requests int `json:"requests"`
	Loads    int `json:"loads"`
	Answered int `json:"answered"` // with the failed requests
	Fresh    int `json:"fresh"`
	Stale    int `json:"stale"`
	Waited   int `json:"waited"`
	Failed   int `json:"failed"`    // with the requests without an answer
	TimedOut int `json:"timed_out"` // no answer within herdTime

	// Trail has the requests in flight at each of trailSteps equal parts of the axis, so far.
	Trail  []int     `json:"trail"`
	Served histogram `json:"served"` // waits of the requests with a page
	Errors histogram `json:"errors"` // waits of the other requests
	P50    float64   `json:"p50_ms"` // of all waits
	P99    float64   `json:"p99_ms"`
	Max    float64   `json:"max_ms"`
}

const trailSteps = 100

// look returns the state of the strategy, with its trail along the axis.
func (s *strategy) look(elapsed, axis time.Duration) strategyView {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := strategyView{
		Requests: s.requests, Loads: s.origin.loaded(), Answered: len(s.ends),
		Fresh: s.outcomes[freshAtOnce], Stale: s.outcomes[staleAtOnce], Waited: s.outcomes[waited],
		Failed: s.outcomes[failed] + s.outcomes[timedOut], TimedOut: s.outcomes[timedOut],
	}
	if s.requests == 0 {
		return v
	}
	over := 0
	for step := range trailSteps + 1 {
		at := axis * time.Duration(step) / trailSteps
		if at > elapsed {
			break
		}
		for over < len(s.ends) && s.ends[over] <= at {
			over++
		}
		v.Trail = append(v.Trail, s.requests-over)
	}
	var all []time.Duration
	for o, waits := range s.waits {
		all = append(all, waits...)
		h := &v.Served
		if outcome(o) == failed || outcome(o) == timedOut {
			h = &v.Errors
		}
		for _, w := range waits {
			h.add(w)
		}
	}
	if len(all) > 0 {
		slices.Sort(all)
		ms := func(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 10 }
		v.P50, v.P99, v.Max = ms(all[len(all)/2]), ms(all[len(all)*99/100]), ms(all[len(all)-1])
	}
	return v
}

// A recording is a whole response.
type recording struct {
	header http.Header
	status int
	body   []byte
}

// ask has a handler answer a request. A panic breaks the connection off, to the client a 502.
func ask(h http.Handler, r *http.Request) (got *recording) {
	got = &recording{header: http.Header{}}
	defer func() {
		if recover() != nil {
			got = &recording{header: http.Header{}, status: http.StatusBadGateway}
		}
	}()
	h.ServeHTTP(got, r)
	return got
}

func (r *recording) Header() http.Header { return r.header }
func (r *recording) Flush()              {}
func (r *recording) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, b...)
	return len(b), nil
}
func (r *recording) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
}

// loadedAt is the time of the origin's stamp: the end of the load.
func (r *recording) loadedAt() time.Time {
	n, _ := strconv.ParseInt(r.header.Get(stampField), 10, 64)
	return stampZero.Add(time.Duration(n))
}

func (r *recording) maxAge() time.Duration {
	for directive := range strings.SplitSeq(r.header.Get("Cache-Control"), ", ") {
		if text, is := strings.CutPrefix(directive, "max-age="); is {
			n, _ := strconv.Atoi(text)
			return time.Duration(n) * time.Second
		}
	}
	return 0
}

// sendTo writes the response to another client.
func (r *recording) sendTo(w http.ResponseWriter) {
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.WriteHeader(r.status)
	w.Write(r.body)
}

// A plainStore is a store without Bellwether. It keeps a page for its max-age, also against a slower load.
type plainStore struct {
	mu      sync.Mutex // guards replies
	replies map[string]*recording
}

func newPlainStore() *plainStore { return &plainStore{replies: map[string]*recording{}} }

// get returns the fresh response to a request, nil if there is none.
func (s *plainStore) get(r *http.Request) *recording {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fresh(r)
}

// fresh is get, under s.mu.
func (s *plainStore) fresh(r *http.Request) *recording {
	kept := s.replies[r.URL.Path]
	if kept == nil || time.Since(kept.loadedAt()) >= kept.maxAge() {
		return nil
	}
	return kept
}

// set keeps a page, unless the store has a fresh one.
func (s *plainStore) set(r *http.Request, loaded *recording) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if loaded.status == http.StatusOK && s.fresh(r) == nil {
		s.replies[r.URL.Path] = loaded
	}
}

func (s *plainStore) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.replies)
}

// loading is a process in which each request without a fresh response loads one.
func (s *plainStore) loading(origin http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kept := s.get(r)
		if kept == nil {
			kept = ask(origin, r)
			s.set(r, kept)
		}
		kept.sendTo(w)
	})
}

// collapsing is a process in which requests for a page share a load by singleflight.
func (s *plainStore) collapsing(origin http.Handler) http.Handler {
	var flights singleflight.Group
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kept := s.get(r)
		if kept == nil {
			v, _, _ := flights.Do(r.URL.Path, func() (any, error) {
				// Another flight may have ended since the first look.
				if kept := s.get(r); kept != nil {
					return kept, nil
				}
				loaded := ask(origin, r)
				s.set(r, loaded)
				return loaded, nil
			})
			kept = v.(*recording)
		}
		kept.sendTo(w)
	})
}
