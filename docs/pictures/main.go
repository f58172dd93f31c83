// Pictures writes the documentation's drawings: SVG files with colours for light and for dark
// pages, and the charts of docs/ten-minutes.md. bench draws the charts of all other measurements.
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
	{"ten-ttl.svg", "Waits and loads without a cache, and with TTL", tenMinutes("ttl", "Step 1: TTL",
		"The origin has 8 connections, and a load takes 100 ms. Without a cache its queue grows.")},
	{"ten-stale.svg", "Waits and loads with TTL, and with StaleWhileRevalidate", tenMinutes("stale-while-revalidate", "Step 2: StaleWhileRevalidate",
		"With TTL alone, callers wait at each expiry. With StaleWhileRevalidate they get the stale report at once.")},
	{"ten-error.svg", "Waits and failures while the origin fails, without and with StaleIfError", tenMinutes("stale-if-error", "Step 3: StaleIfError",
		"From 1 s to 3 s every load fails. The cache tries again after pauses, with one load each.")},
	{"ten-wait.svg", "Waits for a slow first load, without and with MaxWait", tenMinutes("max-wait", "Step 4: MaxWait",
		"The first load takes 1.5 s. Callers with nothing stale wait for it, or fail after MaxWait.",
		"The load goes on, and its report is kept.")},
	{"ten-fleet.svg", "Loads of four processes, without and with Store and Locker", tenMinutes("fleet", "Step 5: Store and Locker",
		"Four processes, each with its own cache. With a store and a locker they make one load for all.")},
}

type picture struct {
	file  string
	title string // for readers without the picture
	draw  func(*sheet)
}

func (p picture) svg() []byte {
	var s sheet
	p.draw(&s)
	return s.svg(p.title)
}
