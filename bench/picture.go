package main

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
	"os"
	"regexp"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// This file is the common part of the pictures: a legend, and panels with one x axis.

const pictureWidth = 18 * vg.Centimeter

// sans is the font of all text. The picture only names it, so a page may show another; see fitText.
var sans = font.Font{Typeface: "Liberation", Variant: "Sans"}

func init() { plot.DefaultFont = sans }

// The palette of Okabe and Ito, whose colours most colour-blind people can distinguish.
var (
	colours = []color.Color{
		color.RGBA{213, 94, 0, 255}, color.RGBA{0, 114, 178, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
		color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{90, 90, 90, 255},
	}
	grey = color.RGBA{130, 130, 130, 255}
)

type picture struct {
	title, about string
	x            string // the label of the x axis
	panels       []*plot.Plot
	captions     []string // of the panels
	names        []string // of the lines
	styles       []draw.LineStyle
}

func (p *picture) panel(caption string) *plot.Plot {
	panel := plot.New()
	panel.Y.Min = 0
	panel.X.Tick.Marker, panel.Y.Tick.Marker = roundTicks{11}, roundTicks{5}
	for _, label := range []*text.Style{&panel.X.Label.TextStyle, &panel.X.Tick.Label, &panel.Y.Tick.Label} {
		label.Font.Size = vg.Points(9)
	}
	p.captions = append(p.captions, caption)
	panel.Y.Padding, panel.X.Padding = 0, 0
	p.panels = append(p.panels, panel)
	return panel
}

// logPanel is a panel with a logarithmic y axis. Values below least are drawn there, at the label.
func (p *picture) logPanel(caption string, least float64, label string) *plot.Plot {
	panel := p.panel(caption)
	panel.Y.Min = least
	panel.Y.Scale, panel.Y.Tick.Marker = plot.LogScale{}, decades{least, label}
	return panel
}

func (p *picture) line(panel *plot.Plot, name string, style draw.LineStyle, points plotter.XYs) error {
	if _, log := panel.Y.Scale.(plot.LogScale); log {
		for i := range points {
			points[i].Y = max(points[i].Y, panel.Y.Min)
		}
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	line.LineStyle = style
	panel.Add(line)
	p.names, p.styles = append(p.names, name), append(p.styles, style)
	return nil
}

func solid(c color.Color) draw.LineStyle { return draw.LineStyle{Color: c, Width: vg.Points(1.3)} }

func dashed(c color.Color) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(4), vg.Points(3)}}
}

// A band is a shaded time. Add it first: later lines are drawn over it.
type band struct{ from, to float64 }

func (b band) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	from, to := x(b.from), x(b.to)
	c.FillPolygon(color.RGBA{240, 236, 226, 255}, []vg.Point{{X: from, Y: c.Min.Y}, {X: to, Y: c.Min.Y}, {X: to, Y: c.Max.Y}, {X: from, Y: c.Max.Y}})
}

// grid is horizontal lines alone, which a band does not hide.
func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Vertical.Color = nil
	g.Horizontal.Color = color.RGBA{205, 205, 205, 255}
	return g
}

func (p *picture) save(height vg.Length, path string) error {
	svg := vgsvg.New(pictureWidth, height)
	c := draw.New(svg)
	c.SetColor(color.White) // the page may be dark
	c.Fill(c.Rectangle.Path())
	c = draw.Crop(c, vg.Points(8), -vg.Points(12), vg.Points(6), -vg.Points(8))

	style := func(size vg.Length) text.Style {
		f := sans
		f.Size = size
		return text.Style{Color: color.Black, Font: f, Handler: plot.DefaultTextHandler, YAlign: draw.YTop}
	}
	title, entry := style(vg.Points(12)), style(vg.Points(9))
	c.FillText(title, vg.Point{X: c.Min.X, Y: c.Max.Y}, p.title)
	c = draw.Crop(c, 0, 0, 0, -vg.Points(17))
	about := entry
	about.Color = color.RGBA{80, 80, 80, 255}
	c.FillText(about, vg.Point{X: c.Min.X, Y: c.Max.Y}, p.about)
	c = draw.Crop(c, 0, 0, 0, -vg.Points(19))

	const thumb, gap, row = 16, 12, 13 // in points
	at := vg.Point{X: c.Min.X, Y: c.Max.Y}
	for i, name := range p.names {
		width := vg.Points(thumb+4) + entry.Width(name)
		if at.X > c.Min.X && at.X+width > c.Max.X {
			at = vg.Point{X: c.Min.X, Y: at.Y - vg.Points(row)}
		}
		level := at.Y - vg.Points(5)
		c.StrokeLine2(p.styles[i], at.X, level, at.X+vg.Points(thumb), level)
		c.FillText(entry, vg.Point{X: at.X + vg.Points(thumb+4), Y: at.Y}, name)
		at.X += width + vg.Points(gap)
	}
	const caption = 17 // in points, above each panel
	c = draw.Crop(c, 0, 0, 0, at.Y-c.Max.Y-vg.Points(row+4+caption))

	rows := make([][]*plot.Plot, len(p.panels))
	from, to := math.Inf(1), math.Inf(-1)
	for i, panel := range p.panels {
		rows[i] = []*plot.Plot{panel}
		from, to = min(from, panel.X.Min), max(to, panel.X.Max)
	}
	for i, panel := range p.panels {
		panel.X.Min, panel.X.Max = from, to
		if i == len(p.panels)-1 {
			panel.X.Label.Text = p.x
		}
		if _, log := panel.Y.Scale.(plot.LogScale); log {
			panel.Y.Max *= 1.3
		} else {
			panel.Y.Max *= 1.1
		}
	}
	for i, tile := range plot.Align(rows, draw.Tiles{Rows: len(rows), Cols: 1, PadY: vg.Points(caption + 4)}, c) {
		p.panels[i].Draw(tile[0])
		c.FillText(entry, vg.Point{X: c.Min.X, Y: tile[0].Max.Y + vg.Points(caption-3)}, p.captions[i])
	}
	var out bytes.Buffer
	if _, err := svg.WriteTo(&out); err != nil {
		return err
	}
	return os.WriteFile(path, fitText(out.Bytes()), 0o644)
}

var (
	svgText   = regexp.MustCompile(`<text ([^>]*)>([^<]*)</text>`)
	svgSize   = regexp.MustCompile(`font-size:([\d.]+)px`)
	svgFamily = regexp.MustCompile(`font-family:Liberation Sans`)
)

// fitText gives each text its laid-out length, and the other names of the font's metric
// equivalents. So a page without these fonts keeps the text in the picture.
func fitText(svg []byte) []byte {
	return svgText.ReplaceAllFunc(svg, func(whole []byte) []byte {
		m := svgText.FindSubmatch(whole)
		size, err := strconv.ParseFloat(string(svgSize.FindSubmatch(m[1])[1]), 64)
		if err != nil {
			return whole
		}
		f := sans
		f.Size = vg.Points(size)
		face := font.DefaultCache.Lookup(f, f.Size)
		length := face.Width(html.UnescapeString(string(m[2])))
		attributes := svgFamily.ReplaceAll(m[1], []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif"))
		return fmt.Appendf(nil, `<text textLength="%.4g" lengthAdjust="spacingAndGlyphs" %s>%s</text>`, length.Points(), attributes, m[2])
	})
}

// roundTicks are at most so many ticks at round numbers.
type roundTicks struct{ most int }

func (r roundTicks) Ticks(lo, hi float64) (ticks []plot.Tick) {
	step := 0.1
	for i := 0; (hi-lo)/step > float64(r.most-1); i++ {
		step *= []float64{2, 2.5, 2}[i%3]
	}
	for n := math.Ceil(lo/step - 1e-9); n*step <= hi+1e-9; n++ {
		at := n*step + 0 // avoids "-0"
		ticks = append(ticks, plot.Tick{Value: at, Label: strconv.FormatFloat(at, 'g', 6, 64)})
	}
	return ticks
}

// decades are ticks at the powers of ten, and a tick at the least value.
type decades struct {
	least float64
	label string
}

func (d decades) Ticks(lo, hi float64) (ticks []plot.Tick) {
	ticks = []plot.Tick{{Value: d.least, Label: d.label}}
	for v := math.Pow(10, math.Floor(math.Log10(lo))); v <= hi; v *= 10 {
		for n := 1.0; n < 10; n++ {
			if at := n * v; at > d.least && at <= hi {
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
