package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file is `bench http`: the middleware beside a bare handler, proxies and other middlewares.

type httpSize struct {
	Name        string
	Wrk         time.Duration // how long wrk loads a server
	Open        time.Duration // how long the generator loads a server
	Rate        float64       // of the generator, requests a second
	Connections int           // of wrk
	Rounds      int
}

var (
	httpQuick = httpSize{Name: "quick", Wrk: time.Second, Open: 1500 * time.Millisecond, Rate: 300, Connections: 32, Rounds: 1}
	httpFull  = httpSize{Name: "full", Wrk: 10 * time.Second, Open: 20 * time.Second, Rate: 1000, Connections: 64, Rounds: 5}
)

// An httpMeasurement is one server under one load, once.
type httpMeasurement struct {
	Load      string  `json:"load"`
	Server    string  `json:"server"`
	Round     int     `json:"round"`
	Requests  int     `json:"requests"`
	PerSecond float64 `json:"per_second"`         // -1 in an open loop, which has a given rate
	CPU       float64 `json:"cpu_us_per_request"` // of all processes of the server
	P50       float64 `json:"p50_ms"`             // -1 under wrk, which delays its next request when it waits
	P99       float64 `json:"p99_ms"`
	Max       float64 `json:"max_ms"`
	Runs      int     `json:"handler_runs"`
	Failures  int     `json:"failures"`
}

func rateOf(m httpMeasurement) float64 { return m.PerSecond }
func cpuOf(m httpMeasurement) float64  { return m.CPU }

var httpColumns = []column[httpMeasurement]{
	{"requests/s", rateOf, "%.0f", false},
	{"CPU us/request", cpuOf, "%.1f", false},
	{"p50 ms", func(m httpMeasurement) float64 { return m.P50 }, "%.2f", false},
	{"p99 ms", func(m httpMeasurement) float64 { return m.P99 }, "%.2f", false},
	{"max ms", func(m httpMeasurement) float64 { return m.Max }, "%.2f", true},
	{"handler runs", func(m httpMeasurement) float64 { return float64(m.Runs) }, "%.4g", false},
	{"failures", func(m httpMeasurement) float64 { return float64(m.Failures) }, "%.4g", false},
}

type httpLoad struct {
	name, what string
	path       string // of newHandler, without the key
	size       int
	open       bool // by the generator, else by wrk
	misses     bool
}

// The loads that have bounds.
const (
	hitSmall     = "hit 1 KiB"
	hitLarge     = "hit 1 MiB"
	tenthMisses  = "10 % misses"
	herdUnderWrk = "herd under wrk"
	herdAtExpiry = "herd at expiry"
)

var httpLoads = []httpLoad{
	{hitSmall, "wrk, one URL that is fresh", "/1k/3600/0/", 1 << 10, false, false},
	{"hit 64 KiB", "the same", "/64k/3600/0/", 64 << 10, false, false},
	{hitLarge, "the same", "/1m/3600/0/", 1 << 20, false, false},
	{tenthMisses, "wrk, 1 KiB, every tenth request for a URL of its own", "/1k/3600/0/", 1 << 10, false, true},
	{"hits at a rate", "requests come at a given rate, 1 KiB", "/1k/3600/0/", 1 << 10, true, false},
	{herdUnderWrk, "wrk, a URL that expires every second and takes 100 ms to make", "/1k/1/100/", 1 << 10, false, false},
	{herdAtExpiry, "the same, at a given rate", "/1k/1/100/", 1 << 10, true, false},
}

func runHTTP(args []string) error {
	flags := newFlags("http")
	flags.sizes("short", "long: figures to publish")
	rounds, json, note := flags.recorded()
	only := some(flags, "loads", httpLoads, func(l httpLoad) string { return l.name })
	partial := flags.Bool("partial", false, "leave out what is not installed")
	if err := flags.parse(args); err != nil {
		return err
	}
	size := sized(flags, httpQuick, httpFull)
	override(&size.Rounds, *rounds)
	loads, err := only()
	if err != nil {
		return err
	}
	if lacks := missing(); len(lacks) > 0 && !*partial {
		return fmt.Errorf("http: not installed: sudo apt-get install --no-install-recommends %s; or -partial, without them", strings.Join(lacks, " "))
	}
	record, err := measureHTTP(size, loads, newProgress(os.Stderr))
	if err != nil {
		return err
	}
	record.Note = *note
	printHTTP(os.Stdout, record)
	if *json != "" {
		return record.write(*json)
	}
	return nil
}

// measureHTTP starts all servers, and loads one at a time.
func measureHTTP(size httpSize, loads []httpLoad, p *progress) (*record, error) {
	l := &life{}
	defer l.end()
	var servers []*server
	for _, k := range serverKinds {
		if k.needs != "" {
			if _, err := exec.LookPath(k.needs); err != nil {
				continue
			}
		}
		if err := l.do(func() { servers = append(servers, k.start(l)) }); err != nil {
			return nil, err
		}
	}
	_, noWrk := exec.LookPath("wrk")
	dir, err := os.MkdirTemp("", "bellwether-bench-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	rec := newRecord("http", size)
	p.begin(size.Rounds * len(loads) * len(servers))
	defer p.end()
	for round := range size.Rounds {
		for n, load := range loads {
			if !load.open && noWrk != nil {
				continue
			}
			for i := range servers {
				s := servers[(i+round)%len(servers)]
				p.step(fmt.Sprintf("round %d of %d, %s, %s", round+1, size.Rounds, load.name, s.name))
				m, err := s.measure(load, size, fmt.Sprint("r", round, "l", n), dir)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", load.name, s.name, err)
				}
				m.Round = round
				rec.HTTP = append(rec.HTTP, m)
			}
		}
	}
	return rec, nil
}

// measure loads the server once. Its first request has stored the page to hit.
func (s *server) measure(load httpLoad, size httpSize, key, dir string) (m httpMeasurement, err error) {
	m = httpMeasurement{Load: load.name, Server: s.name, P50: -1, P99: -1, Max: -1, PerSecond: -1}
	url := s.url + load.path + key
	for range 2 { // some servers fetch before they store
		if _, err := runGenerator(generatorConfig{URL: url, Size: load.size, Order: order{
			Do: "drive", Keys: 1, At: time.Now(), Patience: 5 * time.Second, Rate: 100, For: 50 * time.Millisecond,
		}}); err != nil {
			return m, err
		}
	}
	runs, err := s.runs()
	if err != nil {
		return m, err
	}
	before, err := s.cpu()
	if err != nil {
		return m, err
	}
	if load.open {
		r, err := runGenerator(generatorConfig{URL: url, Size: load.size, Order: order{
			Do: "drive", Keys: 1, At: time.Now().Add(100 * time.Millisecond), Patience: 10 * time.Second,
			Rate: size.Rate, For: size.Open, Seed: 1,
		}})
		if err != nil {
			return m, err
		}
		h, err := hdrhistogram.Decode(r.Waits)
		if err != nil {
			return m, err
		}
		m.Requests, m.Failures = r.Calls, r.Failures
		m.P50, m.P99, m.Max = float64(h.ValueAtQuantile(50))/1000, float64(h.ValueAtQuantile(99))/1000, float64(h.Max())/1000
	} else {
		t, err := runWrk(url, size.Connections, size.Wrk, load.misses, dir)
		if err != nil {
			return m, err
		}
		m.Requests, m.Failures, m.PerSecond = t.Requests, t.Failures, t.PerSecond
	}
	after, err := s.cpu()
	if err != nil {
		return m, err
	}
	ran, err := s.runs()
	if err != nil {
		return m, err
	}
	m.Runs = ran - runs
	m.CPU = float64((after - before).Microseconds()) / float64(max(1, m.Requests))
	return m, nil
}

func printHTTP(w io.Writer, r *record) {
	r.where(w)
	for _, load := range httpLoads {
		bare := r.httpRounds(load.name, "bare")
		if len(bare) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s; %d rounds\n", load.name, load.what, len(bare))
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprint(out, "server\t")
		for _, c := range httpColumns {
			fmt.Fprint(out, c.name, "\t")
		}
		fmt.Fprintln(out, "CPU / bare\trequests/s / bare\t")
		for _, k := range serverKinds {
			ms := r.httpRounds(load.name, k.name)
			if len(ms) == 0 {
				continue
			}
			fmt.Fprint(out, k.name, "\t")
			for _, c := range httpColumns {
				fmt.Fprint(out, c.text(ms), "\t")
			}
			// The ratio of each round first: its servers had the same state of the machine.
			for _, of := range []func(httpMeasurement) float64{cpuOf, rateOf} {
				if ratios := roundRatios(ms, bare, of); len(ratios) == 0 {
					fmt.Fprint(out, "-\t")
				} else {
					fmt.Fprintf(out, "%.2f\t", medianOf(ratios))
				}
			}
			fmt.Fprintln(out)
		}
		out.Flush()
	}
	printClaims(w, httpClaims(r), "")
	fmt.Fprintln(w, "\nCaveats:")
	for _, k := range serverKinds {
		if k.caveat != "" && slices.ContainsFunc(r.HTTP, func(m httpMeasurement) bool { return m.Server == k.name }) {
			fmt.Fprintf(w, "- %s: %s\n", k.name, k.caveat)
		}
	}
}

func (r *record) httpRounds(load, server string) (ms []httpMeasurement) {
	for _, m := range r.HTTP {
		if m.Load == load && m.Server == server {
			ms = append(ms, m)
		}
	}
	return ms
}

func roundRatios(a, b []httpMeasurement, of func(httpMeasurement) float64) []float64 {
	return ofRounds(a, b, func(m httpMeasurement) int { return m.Round }, func(a, b httpMeasurement) (float64, bool) {
		return of(a) / of(b), of(b) > 0 && of(a) >= 0
	})
}
