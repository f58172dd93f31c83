package main

import (
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// This file is `bench plots`: measurements for the pictures of the documentation.

type plotSize struct {
	Name      string
	Processes int
	Rate      float64 // callers per second in each process
	Load      time.Duration
	TTL       time.Duration
	Expiries  int           // shown in the picture
	Outage    time.Duration // of the origin
	Around    time.Duration // shown before and after the outage
	Fleet     []int         // the numbers of processes
	Callers   int
}

var (
	plotQuick = plotSize{
		Name: "quick", Processes: 4, Rate: 100, Load: 100 * time.Millisecond, TTL: time.Second, Expiries: 2,
		Outage: 4 * time.Second, Around: 2 * time.Second, Fleet: []int{1, 2, 4, 8}, Callers: 50,
	}
	plotFull = plotSize{
		Name: "full", Processes: 8, Rate: 200, Load: 100 * time.Millisecond, TTL: 2 * time.Second, Expiries: 2,
		Outage: 30 * time.Second, Around: 5 * time.Second, Fleet: []int{1, 2, 4, 8, 16}, Callers: 250,
	}
)

// originPlaces is the first picture's bound of concurrent loads. Without it a herd would cost no caller time.
const originPlaces = 20

func runPlots(args []string) error {
	flags := newFlags("plots")
	flags.sizes("short", "as long as what is to be published")
	flags.draws()
	chosen := some(flags, "only", plots, func(p plotted) string { return p.file })
	if err := flags.parse(args); err != nil {
		return err
	}
	drawn, err := chosen()
	if err != nil {
		return err
	}
	newRecord("plots", nil).where(os.Stdout)
	size := sized(flags, plotQuick, plotFull)
	b, err := newHerdBench(size.herd(size.Processes))
	if err != nil {
		return err
	}
	defer b.close()
	p := newProgress(os.Stderr)
	steps := 0
	for _, d := range drawn {
		steps += d.steps(size)
	}
	p.begin(steps)
	defer p.end()
	for _, d := range drawn {
		if err := d.draw(b, size, filepath.Join(flags.dir, d.file+".svg"), p); err != nil {
			return err
		}
	}
	return nil
}

// A plotted is a picture: its file in docs, its number of trials, and its function.
type plotted struct {
	file  string
	steps func(plotSize) int
	draw  func(*herdBench, plotSize, string, *progress) error
}

var plots = []plotted{
	{"expiry", func(plotSize) int { return len(shown) }, (*herdBench).plotExpiry},
	{"outage", func(plotSize) int { return len(shown) }, (*herdBench).plotOutage},
	{"cost", func(s plotSize) int { return len(s.Fleet) * len(costed) }, func(_ *herdBench, s plotSize, path string, p *progress) error {
		return plotCost(s, path, p)
	}},
}

func (p plotSize) herd(processes int) size {
	return size{
		Name: p.Name, Processes: processes, Rate: p.Rate, Load: p.Load, TTL: p.TTL, Callers: p.Callers,
		Drive: time.Duration(p.Expiries) * (p.TTL + 2*p.Load), Lease: 2 * time.Second,
	}
}

var (
	shown  = []strategy{noProtection, onlySingleflight, bellwetherRedis}
	costed = []strategy{noProtection, onlySingleflight, redislockAside, rockscacheRedis, bellwetherRedis, bellwetherMemcached, bellwetherEtcd}
)

// plotExpiry draws the slowest wait of each 20 ms around a key's expiries at an origin with few places. Each
// strategy has a panel, because singleflight's and Bellwether's lines would cover each other.
func (b *herdBench) plotExpiry(size plotSize, path string, p *progress) error {
	const step = 20 * time.Millisecond
	narrow := httptest.NewServer(narrowOrigin(originPlaces, size.Load))
	defer narrow.Close()
	pic := &picture{
		title: "Waits around the expiries of one key", x: "seconds",
		about: fmt.Sprintf("a TTL of %v, a load of %v, an origin with %d places, %d processes, %.0f callers a second; nothing may be served stale",
			size.TTL, size.Load, originPlaces, size.Processes, size.Rate*float64(size.Processes)),
	}
	var panels []*plot.Plot
	highest := 0.0
	for i, s := range shown {
		p.step("expiry, " + s.name)
		sc := scenario{name: "expiry", run: func(x *trial) error {
			x.load(size.Load)
			x.behaviour.Origin = narrow.URL
			x.policy.TTL = x.size.TTL
			return x.expiries(size.expiriesShown())
		}}
		var points plotter.XYs
		m, err := b.trial(sc, s, 0, func(x *trial) { points = slowest(x.reports, step) })
		if err != nil {
			return err
		}
		panel := pic.logPanel(fmt.Sprintf("%s: wait of the slowest caller, ms; %s at each expiry", s.name, plural(m.LoadsPerExpiry, "load")), 0.1, "0.1")
		panel.Add(grid())
		if err := pic.line(panel, s.name, solid(colours[i]), points); err != nil {
			return err
		}
		panels, highest = append(panels, panel), max(highest, panel.Y.Max)
	}
	for _, panel := range panels {
		panel.Y.Max = highest // otherwise equal heights would mean different waits
	}
	return pic.save(13*vg.Centimeter, path)
}

// expiriesShown is how long callers come: until the last expiry's queue is empty. Without protection
// each caller during the first load queues for a place, and the value expires a TTL after the last load.
func (p plotSize) expiriesShown() time.Duration {
	queued := p.Rate * float64(p.Processes) * p.Load.Seconds()
	queue := time.Duration(math.Ceil(queued/originPlaces)+1) * p.Load
	return time.Duration(p.Expiries) * (p.TTL + queue + p.Load)
}

// plural is a rounded count with its noun.
func plural(n float64, noun string) string {
	if math.Round(n) != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%.0f %s", n, noun)
}

// slowest is the longest wait of the callers of each step, in milliseconds.
func slowest(reports []report, step time.Duration) (points plotter.XYs) {
	var first time.Time
	longest, last := map[int]time.Duration{}, 0
	for _, r := range reports {
		for _, s := range r.Samples {
			if first.IsZero() || s.At.Before(first) {
				first = s.At
			}
		}
	}
	for _, r := range reports {
		for _, s := range r.Samples {
			n := int(s.At.Sub(first) / step)
			longest[n], last = max(longest[n], s.Wait), max(last, n)
		}
	}
	for n := range last + 1 {
		if wait, came := longest[n]; came {
			points = append(points, plotter.XY{X: (time.Duration(n) * step).Seconds(), Y: wait.Seconds() * 1000})
		}
	}
	return points
}

// plotOutage draws the origin's loads in each half second, while every load fails for a time.
func (b *herdBench) plotOutage(size plotSize, path string, p *progress) error {
	const step = 500 * time.Millisecond
	pic := &picture{
		title: fmt.Sprintf("The origin fails from %v to %v", size.Around, size.Around+size.Outage), x: "seconds",
		about: fmt.Sprintf("shaded: each load fails; one key with a TTL of %v, %d processes, %.0f callers a second",
			size.TTL, size.Processes, size.Rate*float64(size.Processes)),
	}
	panel := pic.logPanel("loads of the origin, a second", 0.5, "0")
	panel.Add(band{size.Around.Seconds(), (size.Around + size.Outage).Seconds()}, grid())
	for i, s := range shown {
		p.step("outage, " + s.name)
		whole := 2*size.Around + size.Outage
		var began time.Time
		sc := scenario{name: "outage", run: func(x *trial) error {
			x.load(size.Load)
			x.policy.TTL = x.size.TTL
			began = time.Now()
			x.behaviour.From, x.behaviour.To = began.Add(size.Around), began.Add(size.Around+size.Outage)
			return x.expiries(whole)
		}}
		counts := make([]float64, whole/step)
		_, err := b.trial(sc, s, 0, func(x *trial) {
			for _, e := range x.events {
				if at := int(e.at.Sub(began) / step); e.begin && at >= 0 && at < len(counts) {
					counts[at]++
				}
			}
		})
		if err != nil {
			return err
		}
		var points plotter.XYs
		for n, c := range counts {
			points = append(points, plotter.XY{X: (time.Duration(n) * step).Seconds(), Y: c / step.Seconds()})
		}
		if err := pic.line(panel, s.name, solid(colours[i]), points); err != nil {
			return err
		}
	}
	return pic.save(9*vg.Centimeter, path)
}

// plotCost draws each process's engine commands for a cold key, by the number of processes.
func plotCost(size plotSize, path string, p *progress) error {
	pic := &picture{
		title: "What one cold key costs the engine", x: "processes",
		about: fmt.Sprintf("%d callers in each process, a load of %v", size.Callers, size.Load),
	}
	panel := pic.logPanel("engine commands for each process", 0.5, "0")
	panel.Add(grid())
	points := make([]plotter.XYs, len(costed))
	var ticks []plot.Tick
	for _, n := range size.Fleet {
		ticks = append(ticks, plot.Tick{Value: math.Log2(float64(n)), Label: strconv.Itoa(n)})
		err := func() error {
			b, err := newHerdBench(size.herd(n))
			if err != nil {
				return err
			}
			defer b.close()
			for i, s := range costed {
				p.step(fmt.Sprintf("cost, %d processes, %s", n, s.name))
				m, err := b.trial(scenarios[0], s, 0, nil)
				if err != nil {
					return err
				}
				points[i] = append(points[i], plotter.XY{X: math.Log2(float64(n)), Y: m.Commands})
			}
			return nil
		}()
		if err != nil {
			return err
		}
	}
	panel.X.Tick.Marker = plot.ConstantTicks(ticks)
	for i, s := range costed {
		if err := pic.line(panel, s.name, solid(colours[i]), points[i]); err != nil {
			return err
		}
		dots, err := plotter.NewScatter(points[i])
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: colours[i], Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
		panel.Add(dots)
	}
	return pic.save(11*vg.Centimeter, path)
}
