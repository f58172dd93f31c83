package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	devpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The tests here look at the live page as people do: in a browser.

// watch is what the page is watched with from its first moment: what the
// script does not catch, and how much of the content moves by itself, for which
// the browser has a number.
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

// browser returns a context for a window of headless Chromium that has opened
// url, and hears events.
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
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.NoSandbox, // as root it has none
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
		chromedp.Navigate(url),
		until(`document.getElementById('link').textContent === 'live' && now`),
	)
	return ctx
}

// protocol sends one command of the browser's protocol.
func protocol[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// until waits for an expression of the page to be true.
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

// shoot takes a picture of the whole page, for docs/ if BELLWETHER_SCREENSHOTS
// says so.
func shoot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if os.Getenv("BELLWETHER_SCREENSHOTS") == "" {
		return // Chromium resizes the page for it, which on a slow machine counts as a shift
	}
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("..", "..", "docs", name), picture, 0o644); err != nil {
		t.Fatal(err)
	}
}

// holdsStill fails if the page has moved by itself, is wider than its window, or
// complains.
func holdsStill(t *testing.T, ctx context.Context) {
	t.Helper()
	if shift := is[float64](t, ctx, `window.shift`); shift > 0.001 {
		t.Errorf("the page's layout shifts by %.4f: %q", shift, is[[]string](t, ctx, `window.shifted`))
	}
	if complaints := is[[]string](t, ctx, `window.complaints`); len(complaints) > 0 {
		t.Errorf("the page complains: %q", complaints)
	}
	if over := is[int](t, ctx, `document.documentElement.scrollWidth - window.innerWidth`); over > 0 {
		t.Errorf("the page is %d pixels wider than its window", over)
	}
}

// TestBrowser_ReleaseTheHerd is what the page is for: the button is pressed, and
// 1,000 requests are one origin call.
func TestBrowser_ReleaseTheHerd(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 1280, 900)
	shoot(t, ctx, "live-before.png")
	inBrowser(t, ctx,
		click(`#release`),
		until(`now.running && +document.querySelector('#unguarded [data-is=in_flight]').textContent.replace(',', '') > 0`),
		until(`now.run === 1 && !now.running`),
	)
	for selector, want := range map[string]string{
		"#guarded [data-is=calls]":     "1",
		"#unguarded [data-is=calls]":   "1,000",
		"#guarded [data-is=answered]":  "1,000",
		"#guarded [data-is=failed]":    "0",
		"#pages .state":                "fresh",
		"#guarded [data-is=in_flight]": "0",
		"#release":                     "Release the herd",
		"#trouble":                     "",
	} {
		if got := is[string](t, ctx, `document.querySelector('`+selector+`').textContent`); got != want {
			t.Errorf("%s says %q, want %q", selector, got, want)
		}
	}
	if got := is[string](t, ctx, `document.getElementById('verdict').textContent`); !strings.Contains(got, "the origin was called once; without it, 1,000 times") {
		t.Errorf("the verdict is %q", got)
	}
	if n := is[int](t, ctx, `trail.length`); n < 5 {
		t.Errorf("%d events were drawn, want many", n)
	}
	if got := is[string](t, ctx, `document.querySelector('#guarded .bars').getAttribute('aria-label')`); !strings.Contains(got, "median") {
		t.Errorf("the histogram is called %q", got)
	}
	holdsStill(t, ctx)
	shoot(t, ctx, "live-after.png")
}

// TestBrowser_Phone is the page in a hand, in the dark, without motion, and by
// keys alone.
func TestBrowser_Phone(t *testing.T) {
	front, _ := newTestServer(t)
	ctx := browser(t, front.URL, 360, 780,
		&emulation.MediaFeature{Name: "prefers-color-scheme", Value: "dark"},
		&emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"})
	if got := is[string](t, ctx, `getComputedStyle(document.body).backgroundColor`); got != "rgb(16, 21, 19)" {
		t.Errorf("the dark page's background is %s", got)
	}
	if small := is[[]string](t, ctx, `[...document.querySelectorAll('button, label')].filter(e => e.getBoundingClientRect().height < 44).map(e => e.textContent)`); len(small) > 0 {
		t.Errorf("too small for a finger: %q", small)
	}

	// The first key goes to the button, the next to the second one, and on to
	// the controls.
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
	// Tab by tab to the first control; its value goes to the server and back.
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
		until(`document.querySelector('#pages .state').textContent === 'none'`),
		click(`#release`),
		until(`now.run === 2 && !now.running`),
	)
	if got := is[int](t, ctx, `now.guarded.calls`); got < 1 || got > herdProcesses {
		t.Errorf("without the lock engine the origin was called %d times, want at most one call a process", got)
	}
	if moving := is[int](t, ctx, `document.getAnimations().length`); moving != 0 {
		t.Errorf("%d animations run although the reader wants none", moving)
	}
	holdsStill(t, ctx)
	shoot(t, ctx, "live-phone.png")
}

// TestBrowser_ServerGone holds that the page says so, and goes on when the
// server is back.
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
