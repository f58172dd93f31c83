package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// This file draws the charts of docs/ten-minutes.md from the measurements of example/tenminutes.

// measured is the output of "go run ./example/tenminutes -o docs/pictures/tenminutes.json".
//
//go:embed tenminutes.json
var measured []byte

// A panel is a run of the program: its Panel.
type panel struct {
	Name     string
	Requests [][3]int // arrival, wait in ms, and kind of answer
	Loads    [][2]int // begin and end in ms
}

// tenMinutes draws one step of docs/ten-minutes.md.
func tenMinutes(step, title string, sentences ...string) func(*sheet) {
	return func(s *sheet) {
		var steps map[string][]panel
		if err := json.Unmarshal(measured, &steps); err != nil {
			panic(err)
		}
		const panelHeight, left, right = 196, 112, 736
		head := 66 + 17*float64(len(sentences))
		s.height = head + 2*panelHeight + 28
		s.heading(title, sentences...)
		panels := steps[step]
		most, lasts := 50, 0
		for _, p := range panels {
			for _, r := range p.Requests {
				most = max(most, (r[1]+49)/50*50)
				lasts = max(lasts, (r[0]+999)/1000*1000)
			}
		}
		for i, p := range panels {
			tone := []string{"without", "with"}[i]
			top := head + float64(i)*panelHeight
			x := func(ms int) float64 { return left + float64(ms)*(right-left)/float64(lasts) }
			zero := top + 128
			y := func(ms int) float64 { return round(zero - 88*float64(ms)/float64(most)) }

			s.text(tone+" strong", "start", 24, top+6, strings.ToUpper(p.Name[:1])+p.Name[1:])
			s.text("ink small", "end", right, top+6, p.summary())
			s.text("soft small", "end", left-10, y(0)+4, "0 ms")
			s.text("soft small", "end", left-10, y(most)+4, fmt.Sprintf("%d ms", most))
			s.text("soft small", "start", 24, y(most/2)+4, "wait")
			s.line("line-line", left, y(0), right, y(0))
			s.line("line-line dashed", left, y(most), right, y(most))
			var marks [3]strings.Builder
			for _, r := range p.Requests {
				fmt.Fprintf(&marks[r[2]], []string{"M%g %gh0", "M%g %gl3 3l-3 3l-3 -3z", "M%g %gl5 5m0 -5l-5 5"}[r[2]],
					round(x(r[0])-[]float64{0, 0, 2.5}[r[2]]), round(y(r[1])-[]float64{0, 3, 2.5}[r[2]]))
			}
			for kind, style := range []string{
				`class="with-line" style="stroke-width:4.5;stroke-linecap:round"`, `class="stale"`, `class="bad-line"`,
			} {
				if marks[kind].Len() > 0 {
					s.add(`<path %s d="%s"/>`, style, marks[kind].String())
				}
			}
			s.text("soft small", "start", 24, zero+28, "loads")
			var loads strings.Builder
			for _, l := range p.Loads {
				fmt.Fprintf(&loads, "M%g %gv14", round(min(x(l[0]), right)), zero+17)
			}
			s.add(`<path class="%s-line" d="%s"/>`, tone, loads.String())
			for second := 1000; second < lasts; second += 1000 {
				s.text("soft small", "middle", round(x(second)), zero+46, fmt.Sprintf("%d s", second/1000))
			}
		}
		legend := s.height - 14
		for _, l := range []struct {
			mark string
			x    float64
			text string
		}{
			{`<path class="with-line" style="stroke-width:6;stroke-linecap:round" d="M%g %gh0"/>`, 118, "fresh answer"},
			{`<path class="stale" d="M%g %gm0 -4l4 4l-4 4l-4 -4z"/>`, 240, "stale answer"},
			{`<path class="bad-line" d="M%g %gm-4 -4l8 8m0 -8l-8 8"/>`, 362, "failure"},
		} {
			s.add(l.mark, l.x, legend-4)
			s.text("soft small", "start", l.x+11, legend, l.text)
		}
		s.text("soft small", "end", right, legend, fmt.Sprintf("%d s, one request each 10 ms", lasts/1000))
	}
}

// summary is the panel in numbers.
func (p panel) summary() string {
	longest := slices.MaxFunc(p.Requests, func(a, b [3]int) int { return a[1] - b[1] })[1]
	failed := 0
	for _, r := range p.Requests {
		if r[2] == 2 {
			failed++
		}
	}
	return fmt.Sprintf("%d loads, longest wait %d ms, %d failures", len(p.Loads), longest, failed)
}
