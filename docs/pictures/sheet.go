package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// This file is the drawing kit: shapes and texts on a sheet, in the tones of the live page.

// width is a sheet's width, about a README's, so text keeps its size.
const width = 760

// Sizes of text. A letter of the widest usual font takes about 0.62 of its size.
const (
	titleSize = 18
	textSize  = 13.5
	smallSize = 12.5
)

// A tone is a colour of a scheme, and its wash, which lies behind text.
type tone struct{ name, light, dark, lightWash, darkWash string }

// tones are the live page's colours. The ground lies behind everything, and hides a page's background.
var tones = []tone{
	{"ground", "#ffffff", "#181f1c", "#eef0ed", "#262f2b"},
	{"line", "#b9c1bb", "#55625b", "#b9c1bb", "#55625b"},
	{"ink", "#17201c", "#e9efec", "#17201c", "#e9efec"},
	{"soft", "#55615b", "#a3b0aa", "#dfe4e0", "#333d38"},
	{"with", "#0b7a5b", "#3fcf9f", "#cfe8de", "#1d4739"},
	{"flight", "#1f5fb4", "#7fb2ff", "#d6e3f5", "#22395c"},
	{"without", "#9a4a00", "#f0a05a", "#f3ddc8", "#4d3520"},
	{"stale", "#8a6100", "#ecc15a", "#f7e6b5", "#4d4016"},
	{"bad", "#c4122f", "#ff8391", "#f8d2d8", "#55202a"},
}

func rules(light bool) string {
	var b strings.Builder
	for _, t := range tones {
		colour, wash := t.dark, t.darkWash
		if light {
			colour, wash = t.light, t.lightWash
		}
		fmt.Fprintf(&b, ".%s{fill:%s}.%s-wash{fill:%s}.%s-line{stroke:%s}", t.name, colour, t.name, wash, t.name, colour)
	}
	return b.String()
}

// A sheet is an unfinished picture.
type sheet struct {
	height float64
	b      strings.Builder
}

func (s *sheet) svg(title string) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %g" width="%[1]d" height="%[2]g" role="img" aria-label="%[3]s">`+"\n",
		width, s.height, html.EscapeString(title))
	fmt.Fprintf(&out, "<title>%s</title>\n", html.EscapeString(title))
	fmt.Fprintf(&out, "<style>text{font-family:system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",Arial,sans-serif;font-size:%gpx}"+
		".title{font-size:%dpx;font-weight:700}.small{font-size:%gpx}.strong{font-weight:600}"+
		"path,line,.ring{fill:none;stroke-width:1.5}.ring{stroke-width:2}.dashed{stroke-dasharray:4 4}.thick{stroke-width:2.5}\n", textSize, titleSize, smallSize)
	fmt.Fprintf(&out, "%s\n@media (prefers-color-scheme:dark){%s}</style>\n", rules(true), rules(false))
	fmt.Fprintf(&out, `<rect class="ground" width="%d" height="%g" rx="10"/>`+"\n", width, s.height)
	out.WriteString(s.b.String())
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (s *sheet) add(format string, args ...any) { fmt.Fprintf(&s.b, format+"\n", args...) }

// text writes at a baseline. class has tone, size and weight, anchor is start, middle or end.
func (s *sheet) text(class, anchor string, x, y float64, text string) {
	s.add(`<text class="%s" text-anchor="%s" x="%g" y="%g">%s</text>`, class, anchor, x, y, html.EscapeString(text))
}

func (s *sheet) lines(class, anchor string, x, y float64, lines ...string) {
	for i, line := range lines {
		s.text(class, anchor, x, y+float64(i)*17, line)
	}
}

func (s *sheet) heading(title string, sentences ...string) {
	s.text("ink title", "start", 24, 34, title)
	s.lines("soft", "start", 24, 56, sentences...)
}

func (s *sheet) rect(class string, x, y, w, h float64) {
	s.add(`<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="3"/>`, class, x, y, w, h)
}

// bar is a rectangle from one moment to another, with a text in its middle.
func (s *sheet) bar(tone string, from, to, y, h float64, text string) {
	s.rect(tone+"-wash", from, y, to-from, h)
	if text != "" {
		s.text("ink small", "middle", (from+to)/2, y+h/2+4.5, text)
	}
}

func (s *sheet) line(class string, x1, y1, x2, y2 float64) {
	s.add(`<line class="%s" x1="%g" y1="%g" x2="%g" y2="%g"/>`, class, x1, y1, x2, y2)
}

// A caller is a mark at a moment. The marks differ in shape, for readers without the tones.
type caller int

const (
	getsFresh caller = iota
	getsStale
	waits
)

func (s *sheet) caller(c caller, x, y float64) {
	switch c {
	case getsFresh:
		s.add(`<circle class="with" cx="%g" cy="%g" r="4"/>`, x, y)
	case getsStale:
		s.add(`<path class="stale-line stale-wash" d="M%g %gl5.5 5.5l-5.5 5.5l-5.5 -5.5z"/>`, x, y-5.5)
	case waits:
		s.add(`<circle class="without-line ring" cx="%g" cy="%g" r="4"/>`, x, y)
	}
}

// cross marks an unwanted end.
func (s *sheet) cross(x, y float64) {
	s.add(`<path class="bad-line thick" d="M%g %gl12 12m0 -12l-12 12"/>`, x-6, y-6)
}

func (s *sheet) arrow(tone string, x1, y1, x2, y2 float64) {
	length := math.Hypot(x2-x1, y2-y1)
	dx, dy := (x2-x1)/length, (y2-y1)/length
	const head, half = 9, 4
	bx, by := x2-dx*head, y2-dy*head // where the head begins
	s.line(tone+"-line", x1, y1, round(bx), round(by))
	s.add(`<polygon class="%s" points="%g,%g %g,%g %g,%g"/>`, tone,
		x2, y2, round(bx-dy*half), round(by+dx*half), round(bx+dy*half), round(by-dx*half))
}

// round drops invisible digits.
func round(x float64) float64 { return math.Round(x*10) / 10 }

// axis is the arrow of time.
func (s *sheet) axis(from, to, y float64) {
	s.arrow("soft", from, y, to, y)
	s.text("soft small", "end", to, y+17, "time")
}
