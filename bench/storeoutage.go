package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// This file is `bench outage`: the store is killed for a time under a steady herd of mixed keys with
// stale values. No call may fail, and the origin's concurrent loads stay within its bound.

type outageSize struct {
	Name                string
	Processes, Keys     int
	Rate                float64 // callers per second in all processes
	Before, Dark, After time.Duration
	Load, TTL, Stale    time.Duration
	Rebuilds            int // MaxRebuilds of each process
}

var (
	outageQuick = outageSize{
		Name: "quick", Processes: 2, Keys: 200, Rate: 500, Before: time.Second, Dark: 5 * time.Second, After: 4 * time.Second,
		Load: 20 * time.Millisecond, TTL: time.Second, Stale: time.Minute, Rebuilds: 8,
	}
	outageFull = outageSize{
		Name: "full", Processes: 4, Keys: 1000, Rate: 2000, Before: 5 * time.Second, Dark: 30 * time.Second, After: 15 * time.Second,
		Load: 20 * time.Millisecond, TTL: 2 * time.Second, Stale: 5 * time.Minute, Rebuilds: 16,
	}
)

// An outageCurve is the course of an outage in steps of time.
type outageCurve struct {
	size  outageSize
	began time.Time
	m     measurement
	up    time.Duration // when the store answered again
	steps []outageStep
}

const outageStepTime = 250 * time.Millisecond

type outageStep struct {
	requests, failures, loads int
	most                      int           // concurrent loads in all processes
	slowest                   time.Duration // of the waits
}

// bound is the origin's bound of concurrent loads.
func (s outageSize) bound() int { return s.Processes * s.Rebuilds }

func runOutage(args []string) error {
	flags := newFlags("outage")
	flags.sizes("5 s at 500 requests a second", "30 s at 2,000 requests a second: the pictures to publish")
	flags.draws()
	if err := flags.parse(args); err != nil {
		return err
	}
	newRecord("outage", nil).where(os.Stdout)
	size := sized(flags, outageQuick, outageFull)
	var broken []error
	for _, s := range []strategy{bellwetherRedis, bellwetherMemcached} {
		c, err := measureOutage(size, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Println(s.name+":", c)
		if err := c.held(); err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", s.name, err))
		}
		if err := c.plot(s.name, filepath.Join(flags.dir, "store-outage-"+s.engines[0]+".svg")); err != nil {
			return err
		}
	}
	return errors.Join(broken...)
}

func measureOutage(size outageSize, s strategy) (*outageCurve, error) {
	b, err := newHerdBench(herdSize(size))
	if err != nil {
		return nil, err
	}
	defer b.close()
	if !b.engines.own(s.engines) {
		return nil, errors.New("this kills its engine and needs one of its own: unset the BELLWETHER_ variable that names it")
	}
	c := &outageCurve{size: size}
	c.m, err = b.trial(scenario{name: "store outage", run: func(x *trial) error { return c.run(x) }}, s, 0, c.draw)
	return c, err
}

func herdSize(o outageSize) size {
	return size{Name: o.Name, Processes: o.Processes, Load: o.Load, TTL: o.TTL, Lease: 2 * time.Second}
}

func (c *outageCurve) run(x *trial) error {
	x.load(c.size.Load)
	x.policy.TTL, x.policy.Stale, x.policy.Rebuilds = c.size.TTL, c.size.Stale, c.size.Rebuilds
	if err := x.open(); err != nil {
		return err
	}
	// All processes get all keys. These loads do not count.
	at := time.Now().Add(10 * time.Millisecond)
	err := x.run("burst", func(_ int, o *order) {
		o.At, o.Keys, o.Callers, o.Behaviour = at, c.size.Keys, c.size.Keys, behaviour{}
	})
	if err != nil {
		return err
	}
	if err := os.Truncate(x.log, 0); err != nil {
		return err
	}
	x.down = true // the store's commands cannot be counted, and the next trial gets a new store
	killed := make(chan error, 1)
	c.began = time.Now().Add(20 * time.Millisecond)
	go func() {
		time.Sleep(time.Until(c.began.Add(c.size.Before)))
		x.bench.engines.kill(x.strategy.engines)
		time.Sleep(time.Until(c.began.Add(c.size.Before + c.size.Dark)))
		err := x.bench.engines.restart(x.strategy.engines)
		c.up = time.Since(c.began)
		killed <- err
	}()
	err = x.measure(0, func() error {
		return x.run("drive", func(i int, o *order) {
			o.At, o.Seed, o.Keys = c.began, uint64(i), c.size.Keys
			o.For, o.Rate = c.size.Before+c.size.Dark+c.size.After, c.size.Rate/float64(c.size.Processes)
		})
	})
	return errors.Join(err, <-killed)
}

// draw fills the steps from a trial.
func (c *outageCurve) draw(x *trial) {
	c.steps = make([]outageStep, (c.size.Before+c.size.Dark+c.size.After)/outageStepTime)
	var outside outageStep // events after the last step are not shown
	at := func(t time.Time) *outageStep {
		n := t.Sub(c.began) / outageStepTime
		if t.Before(c.began) || int(n) >= len(c.steps) {
			return &outside
		}
		return &c.steps[n]
	}
	for _, r := range x.reports {
		for _, s := range r.Samples {
			step := at(s.At)
			step.requests++
			step.slowest = max(step.slowest, s.Wait)
			if !s.OK {
				step.failures++
			}
		}
	}
	running := 0
	for i, e := range x.events {
		if i > 0 { // a load that goes on is in each step
			for step := c.began.Add(x.events[i-1].at.Sub(c.began).Truncate(outageStepTime)); step.Before(e.at); step = step.Add(outageStepTime) {
				at(step).most = max(at(step).most, running)
			}
		}
		if !e.begin {
			running--
			continue
		}
		running++
		at(e.at).loads++
		at(e.at).most = max(at(e.at).most, running)
	}
}

// held returns the broken promises.
func (c *outageCurve) held() error {
	var broken []error
	if n := c.m.Failures + c.m.Wrong + c.m.Hung; n > 0 {
		broken = append(broken, fmt.Errorf("%d of %d requests failed: %s", n, c.m.Calls, c.m.Error))
	}
	if c.m.Most > c.size.bound() {
		broken = append(broken, fmt.Errorf("%d loads at one time, with a bound of %d", c.m.Most, c.size.bound()))
	}
	if whole := c.size.Before + c.size.Dark + c.size.After; float64(c.m.Calls) < 0.9*c.size.Rate*whole.Seconds() {
		broken = append(broken, fmt.Errorf("%d requests in %v are not %.0f a second", c.m.Calls, whole, c.size.Rate))
	}
	return errors.Join(broken...)
}

// rates are the loads per second before, during and after the outage, the latter two settled.
func (c *outageCurve) rates() (before, dark, after float64) {
	mean := func(from, to time.Duration) float64 {
		n := 0
		for _, s := range c.steps[from/outageStepTime : to/outageStepTime] {
			n += s.loads
		}
		return float64(n) / (to - from).Seconds()
	}
	settled := 2 * time.Second
	end := c.size.Before + c.size.Dark
	return mean(0, c.size.Before), mean(c.size.Before+settled, end), mean(end+settled, end+c.size.After)
}

func (c *outageCurve) String() string {
	before, dark, after := c.rates()
	var b strings.Builder
	fmt.Fprintf(&b, "the store was down from %v to %.2f s; %d requests, %d failed, %d wrong; %d loads at one time of at most %d; ",
		c.size.Before, c.up.Seconds(), c.m.Calls, c.m.Failures+c.m.Hung, c.m.Wrong, c.m.Most, c.size.bound())
	fmt.Fprintf(&b, "%.0f loads a second before, %.0f in the outage, %.0f after; waits: p99 %.1f ms, slowest %.0f ms", before, dark, after, c.m.P99, c.m.Max)
	return b.String()
}

func (c *outageCurve) plot(name, path string) error {
	s := c.size
	down, up := s.Before.Seconds(), c.up.Seconds()
	pic := &picture{
		title: fmt.Sprintf("%s: the store is down from %.0f to %.0f s", strings.ToUpper(name[:1])+name[1:], down, up), x: "seconds",
		about: fmt.Sprintf("shaded: the store is down; %d processes, %d keys with a TTL of %v and a stale window of %v, %.0f requests a second",
			s.Processes, s.Keys, s.TTL, s.Stale, s.Rate),
	}
	answers, loads := pic.panel("requests and failures, a second"), pic.panel("loads of the origin, a second")
	running, waits := pic.panel("loads at one time, in all processes"), pic.logPanel("wait of the slowest request, ms", 0.1, "0.1")
	for _, panel := range pic.panels {
		panel.Add(band{down, up}, grid())
	}
	perSecond := 1 / outageStepTime.Seconds()
	for _, l := range []struct {
		panel *plot.Plot
		name  string
		style draw.LineStyle
		of    func(outageStep) float64
	}{
		{answers, "requests", solid(colours[1]), func(o outageStep) float64 { return float64(o.requests) * perSecond }},
		{answers, "failures", solid(colours[0]), func(o outageStep) float64 { return float64(o.failures) * perSecond }},
		{loads, "loads", solid(colours[5]), func(o outageStep) float64 { return float64(o.loads) * perSecond }},
		{running, "loads at one time", solid(colours[2]), func(o outageStep) float64 { return float64(o.most) }},
		{running, fmt.Sprintf("their bound, %d", s.bound()), dashed(grey), func(outageStep) float64 { return float64(s.bound()) }},
		{waits, "the slowest wait", solid(colours[3]), func(o outageStep) float64 { return o.slowest.Seconds() * 1000 }},
	} {
		var points plotter.XYs
		for n, step := range c.steps {
			points = append(points, plotter.XY{X: (time.Duration(n) * outageStepTime).Seconds(), Y: l.of(step)})
		}
		if err := pic.line(l.panel, l.name, l.style, points); err != nil {
			return err
		}
	}
	return pic.save(17*vg.Centimeter, path)
}
