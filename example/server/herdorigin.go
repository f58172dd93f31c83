package main

import (
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"
)

// This file is the origin behind each strategy of the live page.

// A herdOrigin runs a bounded number of loads at a time, like a database. A load takes the settings' delay.
type herdOrigin struct {
	pen *pen

	mu      sync.Mutex // guards the fields below
	places  chan struct{}
	loads   int           // since the release
	running [maxPages]int // loads that have not ended, by page
}

func newHerdOrigin(p *pen) *herdOrigin {
	return &herdOrigin{pen: p, places: make(chan struct{}, p.get("capacity"))}
}

// begin prepares for a herd. A rebuild of the last herd keeps its place in the old channel.
func (o *herdOrigin) begin(capacity int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loads, o.places = 0, make(chan struct{}, capacity)
}

// enter counts a load in, and returns the places and the function to count the load out.
func (o *herdOrigin) enter(page int) (places chan struct{}, leave func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.loads++
	o.running[page]++
	return o.places, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running[page]--
	}
}

func (o *herdOrigin) loaded() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.loads
}

func (o *herdOrigin) loading(page int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running[page]
}

// stampField has the end of the load, in nanoseconds after stampZero on the monotonic clock.
const stampField = "Loaded-At"

var stampZero = time.Now()

func (o *herdOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	page, err := strconv.Atoi(path.Base(r.URL.Path))
	if err != nil || page < 1 || page > maxPages {
		http.NotFound(w, r)
		return
	}
	places, leave := o.enter(page - 1)
	defer leave()
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	pause(r, time.Duration(o.pen.get("delay_ms"))*time.Millisecond)
	if o.pen.get("origin_fails") == 1 {
		text(w, "public") // the failure is for all clients, like the page
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "the origin fails\n")
		return
	}
	w.Header().Set(stampField, strconv.FormatInt(int64(time.Since(stampZero)), 10))
	text(w, fmt.Sprintf("max-age=%d, stale-while-revalidate=%[2]d, stale-if-error=%[2]d", o.pen.get("ttl_s"), o.pen.get("stale_s")))
	fmt.Fprintf(w, "page %d\n", page)
}
