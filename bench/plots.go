package main

import (
	"errors"
	"flag"
	"fmt"
	"image/color"
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

// This file is `bench plots`: measurements of its own, drawn for the
// documentation.

type plotSize struct {
	Name      string
	Processes int
	Rate      float64 // callers in a second, in each process
	Load      time.Duration
	TTL       time.Duration
	Expiries  int           // shown
	Outage    time.Duration // of the origin
	Around    time.Duration // shown before and after it
	Fleet     []int         // the numbers of processes
	Callers   int
}

var (
	plotQuick = plotSize{
		Name: "quick", Processes: 4, Rate: 100, Load: 100 * time.Millisecond, TTL: time.Second, Expiries: 2,
		Outage: 4 * time.Second, Around: 2 * time.Second, Fleet: []int{1, 2, 4, 8}, Callers: 50,
	}
	plotFull = plotSize{
		Name: "full", Processes: 8, Rate: 50, Load: 100 * time.Millisecond, TTL: 2 * time.Second, Expiries: 2,
		Outage: 30 * time.Second, Around: 5 * time.Second, Fleet: []int{1, 2, 4, 8, 16}, Callers: 250,
	}
)

// originPlaces is how many loads the origin of the first picture carries out at
// one time, as a database has connections: without such a bound, a herd would
// cost nobody any time.
const originPlaces = 20

func runPlots(args []string) error {
	flags := flag.NewFlagSet("plots", flag.ExitOnError)
	isFull := flags.Bool("full", false, "as long as what is to be published")
	flags.Bool("quick", false, "short (the default)")
	dir := flags.String("o", "docs", "write the pictures to this `directory`")
	flags.Parse(args)
	if flags.NArg() > 0 {
		return errors.New("plots: unexpected argument; -h explains the flags")
	}
	size := plotQuick
	if *isFull {
		size = plotFull
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	b, err := newHerdBench(size.herd(size.Processes))
	if err != nil {
		return err
	}
	defer b.close()
	p := newProgress(os.Stderr)
	p.begin(2*len(shown) + len(size.Fleet)*len(costed))
	defer p.end()
	if err := b.plotExpiry(size, filepath.Join(*dir, "expiry.svg"), p); err != nil {
		return err
	}
	if err := b.plotOutage(size, filepath.Join(*dir, "outage.svg"), p); err != nil {
		return err
	}
	return plotCost(size, filepath.Join(*dir, "cost.svg"), p)
}

// herd is the herd's size for a picture.
func (p plotSize) herd(processes int) size {
	return size{
		Name: p.Name, Processes: processes, Rate: p.Rate, Load: p.Load, TTL: p.TTL, Callers: p.Callers,
		Drive: time.Duration(p.Expiries) * (p.TTL + 2*p.Load), Lease: 2 * time.Second,
	}
}

var (
	shown  = []strategy{noProtection, onlySingleflight, bellwetherRedis}
	costed = []strategy{noProtection, onlySingleflight, redislockAside, rockscacheRedis, bellwetherRedis, bellwetherMemcached, bellwetherEtcd}

	// The palette of Okabe and Ito, which most colour-blind people can tell apart.
	colours = []color.Color{
		color.RGBA{213, 94, 0, 255}, color.RGBA{0, 114, 178, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
		color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{90, 90, 90, 255},
	}
)

// plotExpiry is how long callers wait, by when they come, around the expiries of
// one key at an origin with few places: of those who come within 20 ms, the
// slowest.
func (b *herdBench) plotExpiry(size plotSize, path string, p *progress) error {
	const step = 20 * time.Millisecond
	narrow := httptest.NewServer(narrowOrigin(originPlaces, size.Load))
	defer narrow.Close()
	pic := picture(fmt.Sprintf("One key with a TTL of %v, a load of %v, an origin with %d places", size.TTL, size.Load, originPlaces),
		"seconds", "the slowest caller's wait, ms")
	for i, s := range shown {
		p.step("expiry, " + s.name)
		sc := scenario{name: "expiry", run: func(x *trial) error {
			x.load(size.Load)
			x.behaviour.Origin = narrow.URL
			x.policy.TTL = x.size.TTL
			return x.expiries(0)
		}}
		var points plotter.XYs
		_, err := b.trial(sc, s, 0, func(x *trial) { points = slowest(x.reports, step) })
		if err != nil {
			return err
		}
		if err := addLine(pic, s.name, colours[i], points); err != nil {
			return err
		}
	}
	return save(pic, 9*vg.Centimeter, path)
}

// slowest is the longest wait, in milliseconds, of those who came in each step.
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
			points = append(points, plotter.XY{X: (time.Duration(n) * step).Seconds(), Y: max(0.1, wait.Seconds()*1000)})
		}
	}
	return points
}

// plotOutage is how many loads the origin gets in each half second, while each of
// them fails for a time.
func (b *herdBench) plotOutage(size plotSize, path string, p *progress) error {
	const step = 500 * time.Millisecond
	pic := picture(fmt.Sprintf("The origin fails from %v to %v; one key, %.0f callers a second",
		size.Around, size.Around+size.Outage, size.Rate*float64(size.Processes)), "seconds", "loads a second (the lowest line: none)")
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
			// A logarithmic axis has no 0.
			points = append(points, plotter.XY{X: (time.Duration(n) * step).Seconds(), Y: max(0.5, c/step.Seconds())})
		}
		if err := addLine(pic, s.name, colours[i], points); err != nil {
			return err
		}
	}
	return save(pic, 9*vg.Centimeter, path)
}

// plotCost is how many commands each process costs its engine when all ask for
// one cold key, by the number of processes.
func plotCost(size plotSize, path string, p *progress) error {
	pic := picture(fmt.Sprintf("One cold key, %d callers in each process, a load of %v", size.Callers, size.Load),
		"processes", "engine commands for each process")
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
				points[i] = append(points[i], plotter.XY{X: math.Log2(float64(n)), Y: max(0.5, m.Commands)})
			}
			return nil
		}()
		if err != nil {
			return err
		}
	}
	pic.X.Tick.Marker = plot.ConstantTicks(ticks)
	for i, s := range costed {
		if err := addLine(pic, s.name, colours[i], points[i]); err != nil {
			return err
		}
		dots, err := plotter.NewScatter(points[i])
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: colours[i], Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
		pic.Add(dots)
	}
	return save(pic, 12*vg.Centimeter, path)
}

// picture is an empty one, with a logarithmic axis upwards.
func picture(title, x, y string) *plot.Plot {
	pic := plot.New()
	pic.BackgroundColor = color.White // the page may be dark
	pic.Title.Text, pic.X.Label.Text, pic.Y.Label.Text = title, x, y
	pic.Title.TextStyle.Font.Size = vg.Points(11)
	pic.Y.Scale, pic.Y.Tick.Marker = plot.LogScale{}, decades{}
	pic.Legend.Top, pic.Legend.Padding = true, vg.Points(2)
	pic.Add(plotter.NewGrid())
	return pic
}

func addLine(pic *plot.Plot, name string, c color.Color, points plotter.XYs) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	line.Color, line.Width = c, vg.Points(1.2)
	pic.Add(line)
	pic.Legend.Add(name, line)
	pic.Y.Max *= 1.7 // room for one line more of the legend
	return nil
}

func save(pic *plot.Plot, height vg.Length, path string) error {
	return pic.Save(18*vg.Centimeter, height, path)
}

// decades are ticks at the powers of ten, written out.
type decades struct{}

func (decades) Ticks(lo, hi float64) (ticks []plot.Tick) {
	for v := math.Pow(10, math.Floor(math.Log10(lo))); v <= hi; v *= 10 {
		for n := 1.0; n < 10; n++ {
			if at := n * v; at >= lo && at <= hi {
				t := plot.Tick{Value: at}
				if n == 1 {
					t.Label = strconv.FormatFloat(at, 'g', -1, 64)
				}
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}
