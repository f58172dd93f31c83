package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	devpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The tests here look at the live page in a browser.

// watch observes the page from its first moment: uncaught errors, and content that moves by itself.
const watch = `window.complaints = []
window.shift = 0
window.shifted = []
addEventListener('error', e => complaints.push(e.message))
addEventListener('unhandledrejection', e => complaints.push(String(e.reason)))
addEventListener('securitypolicyviolation', e => complaints.push(e.violatedDirective + ' ' + e.blockedURI))
new PerformanceObserver(list => {
	for (const e of list.getEntries()) {
		window.shift += e.value
		for (const s of e.sources) shifted.push((s.node && (s.node.outerHTML || s.node.textContent) || 'gone').slice(0, 80))
	}
}).observe({ type: 'layout-shift', buffered: true })`

// browser returns a context for a window of headless Chromium that has opened url.
func browser(t *testing.T, url string, width, height int64, media ...*emulation.MediaFeature) context.Context {
	t.Helper()
	program := os.Getenv("BELLWETHER_CHROMIUM")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if program == "" {
			program, _ = exec.LookPath(name)
		}
	}
	if program == "" {
		t.Fatal("no Chromium: run 'make deps', or set BELLWETHER_CHROMIUM to the program")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.NoSandbox, // as root Chromium has no sandbox
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.WSURLReadTimeout(30*time.Second),
	)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		chromedp.Cancel(ctx) // waits for the browser's end
		cancel()
	})
	inBrowser(t, ctx,
		chromedp.EmulateViewport(width, height),
		protocol(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: media}),
		protocol(devpage.AddScriptToEvaluateOnNewDocument, devpage.AddScriptToEvaluateOnNewDocumentParams{Source: watch}),
	)
	inBrowser(t, ctx, openPage(url)...)
	return ctx
}

// openPage opens the page and waits for its first event.
func openPage(url string) []chromedp.Action[chromedp.Void] {
	return []chromedp.Action[chromedp.Void]{
		chromedp.Navigate(url),
		until(`document.getElementById('link').textContent === 'live' && now`),
	}
}

// protocol sends one command of the browser's protocol.
func protocol[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// until waits until an expression of the page is true.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(20*time.Second))
}

func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(selector))
}

func inBrowser(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	for i, step := range steps {
		if err := chromedp.Do(ctx, step); err != nil {
			t.Fatalf("step %d of %d: %v", i+1, len(steps), err)
		}
	}
}

// is evaluates an expression of the page.
func is[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// shoot writes a picture into BELLWETHER_SCREENSHOTS: of the window for the README, else of the page.
func shoot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("BELLWETHER_SCREENSHOTS")
	if dir == "" {
		return // Chromium resizes the page for a picture, which a slow machine counts as a shift
	}
	inBrowser(t, ctx, until(`document.getAnimations().length === 0`))
	take := chromedp.FullScreenshot(100)
	if name == "live-after.png" || name == "live-phone.png" {
		take = chromedp.CaptureScreenshot()
	}
	shot, err := chromedp.Run(ctx, take)
	if err != nil {
		t.Fatal(err)
	}
	if shot, err = fewColours(shot); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), shot, 0o644); err != nil {
		t.Fatal(err)
	}
}

// fewColours encodes a picture with a palette: a third of the bytes, without a visible difference.
func fewColours(encoded []byte) ([]byte, error) {
	full, err := png.Decode(bytes.NewReader(encoded))
	if err != nil {
		return nil, err
	}
	bounds, count := full.Bounds(), map[color.Color]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[full.At(x, y)]++
		}
	}
	few, index := image.NewPaletted(bounds, palette(count)), map[color.Color]uint8{}
	for c := range count {
		index[c] = uint8(few.Palette.Index(c))
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			few.SetColorIndex(x, y, index[full.At(x, y)])
		}
	}
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, few)
	return out.Bytes(), err
}

// palette returns at most 256 colours so that each counted colour is near one of them: the frequent
// colours, and distant colours for the edges of letters.
func palette(count map[color.Color]int) color.Palette {
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.Color) int {
		if n := count[b] - count[a]; n != 0 {
			return n
		}
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) // for the same file each time
	})
	apart := func(a, b color.Color) int {
		ar, ag, ab, _ := a.RGBA()
		br, bg, bb, _ := b.RGBA()
		far := 0
		for _, d := range []int{int(ar) - int(br), int(ag) - int(bg), int(ab) - int(bb)} {
			far = max(far, d>>8, -d>>8)
		}
		return far
	}
	for distance := 0; ; distance++ {
		var chosen color.Palette
		for _, c := range frequent {
			if !slices.ContainsFunc(chosen, func(other color.Color) bool { return apart(c, other) <= distance }) {
				chosen = append(chosen, c)
			}
			if len(chosen) > 256 {
				break
			}
		}
		if len(chosen) <= 256 {
			return chosen
		}
	}
}

// holdsStill fails if the page has moved by itself, is wider than its window, or has errors.
func holdsStill(t *testing.T, ctx context.Context, where string) {
	t.Helper()
	if shift := is[float64](t, ctx, `window.shift`); shift > 0.001 {
		t.Errorf("%s: the layout shifts by %.4f: %q", where, shift, is[[]string](t, ctx, `window.shifted`))
	}
	if complaints := is[[]string](t, ctx, `window.complaints`); len(complaints) > 0 {
		t.Errorf("%s: the page complains: %q", where, complaints)
	}
	if over := is[int](t, ctx, `document.documentElement.scrollWidth - window.innerWidth`); over > 0 {
		t.Errorf("%s: the page is %d pixels wider than its window", where, over)
	}
}

// legible is a script that returns the page's texts that are cut off, leave their element's box, or
// lack contrast to their background: WCAG 2.1 requires 4.5, and 3 for large text.
const legible = `(() => {
	const faults = []
	const parse = c => c.match(/[\d.]+/g).map(Number)
	const luminance = c => {
		const [r, g, b] = c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
		return .2126 * r + .7152 * g + .0722 * b
	}
	const behind = e => {
		for (; e; e = e.parentElement) {
			const c = parse(getComputedStyle(e).backgroundColor)
			if (c.length < 4 || c[3] === 1) return c.slice(0, 3)
		}
		return [255, 255, 255]
	}
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
	let texts = 0
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim()
		if (!text || !e.checkVisibility({ visibilityProperty: true }) || e.closest('thead, script, style, noscript')) continue
		texts++
		const style = getComputedStyle(e), range = document.createRange()
		range.selectNodeContents(walker.currentNode)
		const box = range.getBoundingClientRect()
		if (box.right > innerWidth + .5 || box.left < -.5) faults.push('cut off: ' + text)
		const holder = e.closest('dd, dt, td, output, figcaption, button, h2, p')
		if (holder && box.right > holder.getBoundingClientRect().right + 1) faults.push('runs out: ' + text)
		const a = luminance(parse(style.color).slice(0, 3)), b = luminance(behind(e))
		const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(style.fontSize)
		if (contrast < (size >= 24 || size >= 18.66 && style.fontWeight >= 700 ? 3 : 4.5)) faults.push('contrast of ' + contrast.toFixed(1) + ': ' + text)
	}
	if (texts < 40) faults.push('only ' + texts + ' texts were found')
	return faults
})()`

func isLegible(t *testing.T, ctx context.Context, where string) {
	t.Helper()
	if faults := is[[]string](t, ctx, legible); len(faults) > 0 {
		t.Errorf("%s: %q", where, faults)
	}
}

func texts(t *testing.T, ctx context.Context, want map[string]string) {
	t.Helper()
	for selector, want := range want {
		got := is[string](t, ctx, "document.querySelector(`"+selector+"`).textContent")
		if got = strings.ReplaceAll(got, "\u00a0", " "); got != want {
			t.Errorf("%s says %q, want %q", selector, got, want)
		}
	}
}

// TestBrowser_ReleaseTheHerd: 1,000 requests are one load with Bellwether, one per process with singleflight.
func TestBrowser_ReleaseTheHerd(t *testing.T) {
	front, _ := newTestServer(t)
	liveCommand(t, front.URL, "/herd/settings", url.Values{"delay_ms": {"3000"}, "capacity": {"400"}})
	ctx := browser(t, front.URL, 1440, 900)
	inBrowser(t, ctx,
		click(`#release`),
		until(`now.running && +document.querySelector('#without [data-is=in_flight]').textContent.split(' ')[0].replace(',', '') > 0`),
		until(`now.run === 1 && !now.running`),
	)
	texts(t, ctx, map[string]string{
		"#bellwether [data-is=loads]":     "1",
		"#bellwether [data-is=story]":     "1 load answered 1,000 waiting requests in 4 processes.",
		"#bellwether [data-is=answered]":  "1,000 of 1,000",
		"#bellwether [data-is=waited]":    "1,000",
		"#bellwether [data-is=failed]":    "0",
		"#bellwether [data-is=in_flight]": "0 of 1,000",
		"#singleflight [data-is=loads]":   "4",
		"#singleflight [data-is=story]":   "4 loads: each process loads for itself. No request gets a stale page.",
		"#without [data-is=loads]":        "1,000",
		"#without [data-is=story]":        "1,000 loads: one for each request that found no page. The origin has places for 400, so the others queue.",
		"#without [data-is=failures]":     "",
		"#without [data-is=axis]":         "15 s",
		"#without [data-is=half]":         "7.5 s",
		"#pages .state":                   "fresh",
		"#release":                        "Release the herd",
		"#trouble":                        "",
		"#made":                           "Herd 1 was made with 1,000 requests, 3,000 ms a load, a capacity of 400 loads, 1 page, a TTL of 10 s and a stale window of 30 s.",
	})
	if got := is[string](t, ctx, `document.getElementById('verdict').textContent.replaceAll('\u00a0', ' ')`); !strings.Contains(got, "1,000 requests made 1 load with Bellwether, 4 with singleflight in each process and 1,000 without protection.") {
		t.Errorf("the verdict is %q", got)
	}
	if got := is[string](t, ctx, `document.querySelector('#bellwether .bars').getAttribute('aria-label')`); !strings.Contains(got, "median") {
		t.Errorf("the histogram is called %q", got)
	}
	if got := is[string](t, ctx, `document.querySelector('#bellwether .stack').getAttribute('aria-label')`); got != "Answers: 0 fresh, 0 stale, 1,000 waited, 0 failed" {
		t.Errorf("the answers are called %q", got)
	}
	holdsStill(t, ctx, "after the herd")
}

// drawing is an expression for all shapes and texts of the cards.
const drawing = `[...document.querySelectorAll('article')].map(e => e.innerText +
	[...e.querySelectorAll('path')].map(p => p.getAttribute('d')) + [...e.querySelectorAll('i')].map(i => i.style.transform)).join()`

// TestBrowser_Reload holds that the cards of a herd are the same for a reader after the herd.
func TestBrowser_Reload(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 1440, 900)
	empty := is[string](t, ctx, drawing)
	liveCommand(t, front.URL, "/herd/settings", url.Values{"herd": {"300"}, "delay_ms": {"200"}})
	inBrowser(t, ctx, click(`#release`), until(`now.run === 1 && !now.running`))
	before := is[string](t, ctx, drawing)
	if before == empty || !strings.Contains(before, "L") {
		t.Fatalf("the herd has drawn nothing: %s", before)
	}
	inBrowser(t, ctx, openPage(front.URL)...)
	if after := is[string](t, ctx, drawing); after != before {
		t.Errorf("after a reload:\n%s\nwant\n%s", after, before)
	}
}

func TestBrowser_AxesStay(t *testing.T) {
	front, _ := newTestServer(t)
	liveCommand(t, front.URL, "/herd/settings", url.Values{"delay_ms": {"3000"}, "capacity": {"500"}})
	ctx := browser(t, front.URL, 1440, 900)
	is[bool](t, ctx, `(() => {
		window.axes = new Set(); window.reached = []
		events.addEventListener('message', () => {
			if (!now.running) return
			axes.add([...document.querySelectorAll('[data-is=in_flight], .scale.time')].map(e => e.textContent.split(' of ').at(-1)).join())
			reached.push([now.elapsed_ms / now.axis_ms, Math.max(...document.querySelector('#without path').getAttribute('d').match(/[\d.]+(?= )/g)) / 1000])
		})
		return true
	})()`)
	inBrowser(t, ctx, click(`#release`), until(`now.run === 1 && !now.running`))
	// One chart of each card.
	if got, want := is[[]string](t, ctx, `[...axes]`), []string{"1,000,04 s8 s,1,000,04 s8 s,1,000,04 s8 s"}; !slices.Equal(spaces(got), want) {
		t.Errorf("the axes were %q, want always %q", got, want)
	}
	reached := is[[][]float64](t, ctx, `reached`)
	if len(reached) < 10 {
		t.Errorf("%d views of a herd of 6 s, want many", len(reached))
	}
	for _, r := range reached {
		if math.Abs(r[0]-r[1]) > .001 {
			t.Errorf("the curve ends at %.3f of the axis, the time at %.3f", r[1], r[0])
		}
	}
}

func spaces(texts []string) (plain []string) {
	for _, text := range texts {
		plain = append(plain, strings.ReplaceAll(text, "\u00a0", " "))
	}
	return plain
}

// TestBrowser_StaleAndFailures holds that cards show staleness and failures, and keep their settings.
func TestBrowser_StaleAndFailures(t *testing.T) {
	front, _ := newTestServer(t)
	released(t, front.URL, url.Values{"herd": {"100"}, "delay_ms": {"100"}, "ttl_s": {"1"}, "stale_s": {"60"}})
	ctx := browser(t, front.URL, 1440, 900)
	inBrowser(t, ctx,
		until(`now.pages[0].state === 'stale'`),
		click(`[name=origin_fails]`),
		until(`now.settings.origin_fails === 1`),
		click(`#release`),
		until(`now.run === 2 && !now.running`),
	)
	texts(t, ctx, map[string]string{
		"#bellwether [data-is=story]":      "100 requests got the stale page at once. The failures of the origin reached no client.",
		"#bellwether [data-is=stale]":      "100",
		"#bellwether [data-is=failures]":   "",
		"#singleflight [data-is=failures]": " 100 requests failed.",
		"#without [data-is=failures]":      " 100 requests failed.",
		"#without [data-is=failed]":        "100",
		"#made":                            "Herd 2 was made with 100 requests, 100 ms a load, a capacity of 100 loads, 1 page, a TTL of 1 s, a stale window of 60 s and a failing origin.",
	})
	isLegible(t, ctx, "failures")
	shoot(t, ctx, "live-failures.png")
	const red = "rgb(196, 18, 47)"
	for expression, want := range map[string]string{
		`getComputedStyle(document.querySelector('#without [data-is=failed]')).backgroundColor`:                                                                                      red,
		`getComputedStyle(document.querySelector('#without [data-is=failures]')).color`:                                                                                              red,
		`getComputedStyle(document.querySelector('#without .stack .is-failed')).backgroundColor`:                                                                                     red,
		`document.querySelector('#without .stack .is-failed').style.transform`:                                                                                                       "translateX(0%) scaleX(1)",
		`[...new Set([...document.querySelectorAll('#without .bars i')].filter(i => i.style.transform.endsWith('scaleY(1)')).map(i => getComputedStyle(i).backgroundColor))].join()`: red,
		`getComputedStyle(document.querySelector('#bellwether [data-is=failed]')).backgroundColor`:                                                                                   "rgba(0, 0, 0, 0)",
		`document.querySelector('#bellwether .stack .is-stale').style.transform`:                                                                                                     "translateX(0%) scaleX(1)",
	} {
		if got := is[string](t, ctx, expression); got != want {
			t.Errorf("%s is %s, want %s", expression, got, want)
		}
	}
	// Without a stale page the failure is shared.
	inBrowser(t, ctx,
		click(`#invalidate`),
		until(`now.pages[0].state === 'none'`),
		click(`#release`),
		until(`now.run === 3 && !now.running`),
	)
	texts(t, ctx, map[string]string{
		"#bellwether [data-is=loads]":    "1",
		"#bellwether [data-is=story]":    "The failure of 1 load answered the waiting requests in 4 processes.",
		"#bellwether [data-is=failures]": " 100 requests failed.",
	})
	made := is[string](t, ctx, `document.getElementById('made').textContent`)
	inBrowser(t, ctx, click(`[name=origin_fails]`), until(`now.settings.origin_fails === 0`))
	if got := is[string](t, ctx, `document.getElementById('made').textContent`); got != made+" The controls have other values now." {
		t.Errorf("the result was made with %q, and after a change %q", made, got)
	}
}

// TestBrowser_Presentation holds that the presentation is one screen with the cards, at its own URL.
func TestBrowser_Presentation(t *testing.T) {
	front, _ := newTestServer(t)
	liveCommand(t, front.URL, "/herd/settings", url.Values{"delay_ms": {"100"}, "capacity": {"200"}})
	ctx := browser(t, front.URL, 1920, 1080)
	inBrowser(t, ctx, click(`#present`), until(`location.hash === '#present'`))
	inBrowser(t, ctx, click(`#release`), until(`now.run === 1 && !now.running`))
	for _, size := range [][2]int64{{1920, 1080}, {1280, 720}, {1024, 768}} {
		inBrowser(t, ctx, chromedp.EmulateViewport(size[0], size[1]))
		inBrowser(t, ctx, openPage(fmt.Sprintf("%s/?%d#present", front.URL, size[0]))...) // the browser would not load the same URL again
		where := fmt.Sprintf("the presentation at %dx%d", size[0], size[1])
		if over := is[int](t, ctx, `document.documentElement.scrollHeight - innerHeight`); over > 0 {
			t.Errorf("%s is %d pixels higher than its window", where, over)
		}
		if got := is[string](t, ctx, `[...document.querySelectorAll('section, article, form, footer')].filter(e => e.checkVisibility()).map(e => e.id || e.className).join()`); got != "act,result,bellwether,singleflight,without" {
			t.Errorf("%s shows %s", where, got)
		}
		if low := is[int](t, ctx, `Math.min(...[...document.querySelectorAll('.plot')].map(e => e.clientHeight))`); low < 24 {
			t.Errorf("%s has charts of %d pixels", where, low)
		}
		isLegible(t, ctx, where)
		holdsStill(t, ctx, where)
		shoot(t, ctx, fmt.Sprintf("live-present-%d.png", size[0]))
	}
	inBrowser(t, ctx, chromedp.KeyEvent(kb.Escape), until(`location.hash === '' && document.getElementById('controls').checkVisibility()`))
}

func TestBrowser_NoScript(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 320, 700)
	inBrowser(t, ctx,
		protocol(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}),
		chromedp.Navigate(front.URL),
	)
	shoot(t, ctx, "live-noscript.png")
	text := is[string](t, ctx, `document.body.innerText`)
	if !strings.Contains(text, "This page needs JavaScript") || strings.Contains(text, "Release the herd") {
		t.Errorf("without JavaScript the page says %q", text)
	}
	if over := is[int](t, ctx, `document.documentElement.scrollWidth - window.innerWidth`); over > 0 {
		t.Errorf("the page is %d pixels wider than its window", over)
	}
}

// TestBrowser_Layout looks at phones and screens, light and dark, before and after the largest herd.
func TestBrowser_Layout(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 320, 700)
	widths := []int64{320, 390, 768, 1024, 1440, 1920}
	if testing.Short() {
		widths = []int64{320, 768, 1440}
	}
	look := func(when string) {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range widths {
				inBrowser(t, ctx,
					chromedp.EmulateViewport(width, 900),
					protocol(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}),
				)
				inBrowser(t, ctx, openPage(front.URL)...)
				where := fmt.Sprintf("%s-%d-%s", when, width, scheme)
				isLegible(t, ctx, where)
				holdsStill(t, ctx, where)
				shoot(t, ctx, "live-"+where+".png")
			}
		}
	}
	look("before")
	released(t, front.URL, nil)
	look("after")
	inBrowser(t, ctx, protocol(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{}))
	// For the README the page expires, and the same herd comes again.
	liveCommand(t, front.URL, "/herd/invalidate", nil)
	released(t, front.URL, url.Values{"ttl_s": {"1"}, "stale_s": {"60"}})
	time.Sleep(1200 * time.Millisecond)
	released(t, front.URL, url.Values{"ttl_s": {"10"}})
	for name, size := range map[string][2]int64{"live-after.png": {1440, 932}, "live-phone.png": {390, 844}} {
		inBrowser(t, ctx, chromedp.EmulateViewport(size[0], size[1]))
		inBrowser(t, ctx, openPage(front.URL)...)
		shoot(t, ctx, name)
	}
	if testing.Short() {
		return
	}
	// 5,000 requests, most without an answer after 30 s.
	liveCommand(t, front.URL, "/herd/invalidate", nil)
	liveCommand(t, front.URL, "/herd", url.Values{"herd": {"5000"}, "delay_ms": {"3000"}, "capacity": {"10"}, "pages": {"6"}, "locker_down": {"1"}})
	eventually(t, 40*time.Second, "the end of the herd", func() bool {
		v, _ := liveCommand(t, front.URL, "/herd/settings", url.Values{"ttl_s": {"60"}})
		return !v.Running
	})
	look("limit")
}

// TestBrowser_Phone looks at the page on a phone: dark, without motion, and by keys alone.
func TestBrowser_Phone(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 320, 780,
		&emulation.MediaFeature{Name: "prefers-color-scheme", Value: "dark"},
		&emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"})
	if got := is[string](t, ctx, `getComputedStyle(document.body).backgroundColor`); got != "rgb(16, 21, 19)" {
		t.Errorf("the dark page's background is %s", got)
	}
	if small := is[[]string](t, ctx, `[...document.querySelectorAll('button, label')].filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 44).map(e => e.textContent)`); len(small) > 0 {
		t.Errorf("too small for a finger: %q", small)
	}

	// The first tab goes to the button, the next to the second button, and then to the controls.
	inBrowser(t, ctx, chromedp.KeyEvent(kb.Tab))
	if got := is[string](t, ctx, `document.activeElement.id`); got != "release" {
		t.Fatalf("the first tab goes to %q", got)
	}
	if got := is[string](t, ctx, `getComputedStyle(document.activeElement).outlineStyle`); got != "solid" {
		t.Errorf("the focus is not seen: %s", got)
	}
	inBrowser(t, ctx, chromedp.KeyEvent(kb.Enter), until(`now.run === 1 && !now.running`))
	if got := is[string](t, ctx, `document.activeElement.id`); got != "release" {
		t.Errorf("after the herd the focus is on %q", got)
	}
	// Tab by tab to the first control. Its value goes to the server and back.
	for range 4 {
		if is[string](t, ctx, `document.activeElement.name || ''`) == "herd" {
			break
		}
		inBrowser(t, ctx, chromedp.KeyEvent(kb.Tab))
	}
	inBrowser(t, ctx,
		chromedp.KeyEvent(kb.ArrowRight),
		until(`now.settings.herd === 1100`),
		click(`[name=locker_down]`),
		until(`document.getElementById('locker').textContent === 'down'`),
		click(`#invalidate`),
		until(`document.querySelector('#pages .state').textContent === 'no entry'`),
		click(`#release`),
		until(`now.run === 2 && !now.running`),
	)
	if got := is[int](t, ctx, `now.bellwether.loads`); got < 1 || got > herdProcesses {
		t.Errorf("without the locker there were %d loads, want at most one a process", got)
	}
	if moving := is[int](t, ctx, `document.getAnimations().length`); moving != 0 {
		t.Errorf("%d animations run although the reader wants none", moving)
	}
	isLegible(t, ctx, "the phone")
	holdsStill(t, ctx, "the phone")
}

// TestBrowser_ServerGone holds that the page reports a lost server, and continues with its return.
func TestBrowser_ServerGone(t *testing.T) {
	p := start(t)
	ctx := browser(t, "http://"+p.addr, 1280, 900)
	p.cmd.Process.Kill()
	inBrowser(t, ctx,
		until(`document.getElementById('link').className === 'off'`),
		click(`#release`),
		until(`document.getElementById('trouble').textContent === 'The server does not answer.'`),
	)
	start(t, "-addr", p.addr)
	inBrowser(t, ctx, until(`document.getElementById('link').textContent === 'live'`),
		click(`#release`),
		until(`now.run === 1 && !now.running`),
	)
}
