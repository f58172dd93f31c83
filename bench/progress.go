package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// A progress reports how far a run is: on a terminal in one line, else in a line every ten seconds.
type progress struct {
	w           io.Writer
	over        bool
	began, last time.Time
	done, total int
}

func newProgress(f *os.File) *progress {
	info, err := f.Stat()
	return &progress{w: f, over: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (p *progress) begin(total int) {
	p.began, p.last, p.done, p.total = time.Now(), time.Now(), 0, total
}

// step reports the present step. The step before is done.
func (p *progress) step(what string) {
	since := time.Since(p.began)
	left := "?"
	if p.done > 0 {
		left = (since / time.Duration(p.done) * time.Duration(p.total-p.done)).Round(time.Second).String()
	}
	line := fmt.Sprintf("%d of %d: %s; %v, about %s left", p.done+1, p.total, what, since.Round(time.Second), left)
	p.done++
	switch {
	case p.over:
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	case time.Since(p.last) >= 10*time.Second:
		p.last = time.Now()
		fmt.Fprintln(p.w, line)
	}
}

func (p *progress) end() {
	if p.over {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
