// Pictures writes the documentation's drawings: SVG files that carry their
// colours for light and for dark pages. The charts with measured figures are not
// here; bench draws them.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("o", "docs", "write the pictures to this `directory`")
	flag.Parse()
	for _, p := range pictures {
		if err := os.WriteFile(filepath.Join(*dir, p.file), p.svg(), 0o644); err != nil {
			fmt.Fprintf(os.Stderr, "pictures: %v\n", err)
			os.Exit(1)
		}
	}
}

// pictures are all drawings, each by its file in docs.
var pictures = []picture{
	{"herd.svg", "One key expires, without and with Bellwether", drawHerd},
	{"get.svg", "The way of one Get through a fleet", drawGet},
	{"life.svg", "One key's life", drawLife},
	{"takeover.svg", "A holder stops, and another process takes over", drawTakeover},
}

type picture struct {
	file  string
	title string // for readers that cannot see the picture
	draw  func(*sheet)
}

func (p picture) svg() []byte {
	var s sheet
	p.draw(&s)
	return s.svg(p.title)
}
