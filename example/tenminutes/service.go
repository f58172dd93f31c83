package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// This file is the service around the cache: its origin, its requests, and the record of both.

// A Report is what the service returns.
type Report struct {
	Text   string
	Loaded time.Time
}

// A load is the origin's function, which the cache calls.
type load = func(ctx context.Context, id string) (Report, error)

const (
	connections = 8                      // of the origin's database
	loadTime    = 100 * time.Millisecond // of a report
	interval    = 10 * time.Millisecond  // between two requests
	patience    = 10 * time.Millisecond  // a shorter wait does not count
)

// A trouble is a time in which the origin fails, or a load takes this long.
type trouble struct {
	from, to time.Duration
	fails    bool
	takes    time.Duration
}

// An origin makes reports, as many at a time as it has connections.
type origin struct {
	began   time.Time
	trouble trouble
	free    chan struct{}

	mu    sync.Mutex
	loads [][2]int // begin and end in ms
}

func newOrigin(t trouble) *origin {
	return &origin{began: time.Now(), trouble: t, free: make(chan struct{}, connections)}
}

func (o *origin) loadReport(ctx context.Context, id string) (Report, error) {
	began := time.Now()
	o.free <- struct{}{}
	defer func() {
		<-o.free
		o.mu.Lock()
		defer o.mu.Unlock()
		o.loads = append(o.loads, [2]int{o.ms(began), o.ms(time.Now())})
	}()
	takes := loadTime
	if at := time.Since(o.began); at >= o.trouble.from && at < o.trouble.to {
		if o.trouble.fails {
			return Report{}, errors.New("database: connection refused")
		}
		takes = o.trouble.takes
	}
	time.Sleep(takes)
	return Report{Text: "report " + id, Loaded: time.Now()}, nil
}

// ms is a moment in milliseconds since the origin began.
func (o *origin) ms(at time.Time) int {
	return int(at.Sub(o.began).Round(time.Millisecond) / time.Millisecond)
}

// The kinds of answers.
const (
	fresh = iota
	stale
	failed
)

// A Panel is a run: all requests to one setup of the service, and all loads.
type Panel struct {
	Name     string   `json:"name"`
	Requests [][3]int `json:"requests"` // arrival, wait in ms, and kind of answer
	Loads    [][2]int `json:"loads"`
}

// run sends requests to the service for a time. Several gets stand for processes, in turns.
func run(o *origin, lasts time.Duration, gets []load) Panel {
	p := Panel{Requests: make([][3]int, lasts/interval)}
	var requests sync.WaitGroup
	for i := range p.Requests {
		due := o.began.Add(time.Duration(i) * interval)
		requests.Go(func() {
			time.Sleep(time.Until(due))
			report, err := gets[i%len(gets)](context.Background(), "sales")
			kind := fresh
			switch {
			case err != nil:
				kind = failed
			case time.Since(report.Loaded) > reportTTL+patience:
				kind = stale
			}
			p.Requests[i] = [3]int{o.ms(due), o.ms(time.Now()) - o.ms(due), kind}
		})
	}
	requests.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	p.Loads = slices.Clone(o.loads)
	slices.SortFunc(p.Loads, func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	return p
}

func (p Panel) row() string {
	waited, longest, kinds := 0, 0, [3]int{}
	for _, r := range p.Requests {
		if r[1] >= int(patience/time.Millisecond) {
			waited++
		}
		longest = max(longest, r[1])
		kinds[r[2]]++
	}
	return fmt.Sprintf("| %s | %d | %d | %d | %d ms | %d | %d |", p.Name, len(p.Requests), len(p.Loads), waited, longest, kinds[stale], kinds[failed])
}
