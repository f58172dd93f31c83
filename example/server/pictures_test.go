package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// The tests here look at the documentation's drawings in a browser, which this package has.

// drawn is a script that returns the faults of an open drawing: texts that leave the sheet, cover
// each other, are too small, or lack contrast to the shape behind them.
const drawn = `(() => {
	const faults = [], texts = [...document.querySelectorAll('text')]
	const sheet = document.documentElement.getBoundingClientRect()
	const luminance = colour => {
		const [r, g, b] = colour.match(/[\d.]+/g).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
		return .2126 * r + .7152 * g + .0722 * b
	}
	const boxes = texts.map(e => e.getBoundingClientRect())
	texts.forEach((e, i) => {
		const box = boxes[i], says = e.textContent, style = getComputedStyle(e)
		if (box.left < sheet.left + 8 || box.right > sheet.right - 8 || box.top < sheet.top || box.bottom > sheet.bottom - 4) faults.push('leaves the sheet: ' + says)
		if (parseFloat(style.fontSize) < 12) faults.push('too small: ' + says)
		boxes.slice(0, i).forEach((other, j) => {
			if (box.left < other.right && other.left < box.right && box.top + 3 < other.bottom && other.top + 3 < box.bottom) faults.push(says + ' covers ' + texts[j].textContent)
		})
		for (const x of [box.left + 1, (box.left + box.right) / 2, box.right - 1]) {
			const behind = document.elementsFromPoint(x, (box.top + box.bottom) / 2).find(s => s.matches('rect'))
			if (!behind) { faults.push('nothing is behind ' + says); continue }
			const a = luminance(style.fill), b = luminance(getComputedStyle(behind).fill)
			const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05)
			if (contrast < 4.5) faults.push('contrast of ' + contrast.toFixed(1) + ': ' + says)
		}
	})
	if (texts.length < 12) faults.push('only ' + texts.length + ' texts')
	return faults
})()`

// drawings returns the files that docs/pictures writes.
func drawings(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, name := range []string{"herd", "get", "life", "takeover", "ten-ttl", "ten-stale", "ten-error", "ten-wait", "ten-fleet"} {
		path, err := filepath.Abs(filepath.Join("..", "..", "docs", name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	return files
}

func scheme(name string) chromedp.Action[chromedp.Void] {
	return protocol(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

// TestBrowser_DrawingsAreLegible holds the drawings in light and dark, with the widest usual font.
func TestBrowser_DrawingsAreLegible(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 1000, 800)
	for _, path := range drawings(t) {
		grounds := map[string]bool{}
		for _, name := range []string{"light", "dark"} {
			inBrowser(t, ctx, scheme(name), chromedp.Navigate("file://"+path))
			if faults := is[[]string](t, ctx, drawn); len(faults) > 0 {
				t.Errorf("%s, %s: %q", filepath.Base(path), name, faults)
			}
			grounds[is[string](t, ctx, `getComputedStyle(document.querySelector('rect')).fill`)] = true
		}
		if len(grounds) != 2 {
			t.Errorf("%s has the same ground in light and in dark", filepath.Base(path))
		}
	}
}

// TestBrowser_DrawingsHaveTheirGround: a drawing is the same on white and on black, for any system's scheme.
func TestBrowser_DrawingsHaveTheirGround(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 800, 700)
	schemes := []string{"light", "dark"}
	if testing.Short() {
		schemes = schemes[:1]
	}
	for _, path := range drawings(t) {
		svg, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range schemes {
			var shots [][]byte
			for _, page := range []string{"#ffffff", "#0d1117"} {
				shots = append(shots, embedded(t, ctx, svg, name, page))
			}
			if !bytes.Equal(shots[0], shots[1]) {
				t.Errorf("%s, %s: the page shows through", filepath.Base(path), name)
			}
			if colours(shots[0]) < 20 {
				t.Errorf("%s, %s: an empty picture", filepath.Base(path), name)
			}
		}
	}
}

// embedded returns the pixels of a drawing in a page of one colour, without the drawing's edge.
func embedded(t *testing.T, ctx context.Context, svg []byte, name, page string) []byte {
	t.Helper()
	html := fmt.Sprintf(`<body style="margin:0;background:%s"><img style="display:block" src="data:image/svg+xml;base64,%s">`, page, base64.StdEncoding.EncodeToString(svg))
	inBrowser(t, ctx, scheme(name), chromedp.Navigate("data:text/html;base64,"+base64.StdEncoding.EncodeToString([]byte(html))))
	box := is[[]int](t, ctx, `[document.images[0].width, document.images[0].height]`)
	encoded, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	shot, err := png.Decode(bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	sheet := image.NewRGBA(image.Rect(0, 0, box[0]-2*corner, box[1]-2*corner))
	draw.Draw(sheet, sheet.Rect, shot, image.Pt(corner, corner), draw.Src)
	return sheet.Pix
}

// corner is more than the radius of a sheet's round corners, outside of which the page is seen.
const corner = 10

func colours(pixels []byte) int {
	seen := map[[4]byte]bool{}
	for pixel := range slices.Chunk(pixels, 4) {
		seen[[4]byte(pixel)] = true
	}
	return len(seen)
}
