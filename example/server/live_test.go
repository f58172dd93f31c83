package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// The tests here release the live page's herd without a browser.

// liveCommand sends one of the page's commands and returns the resulting state.
func liveCommand(t *testing.T, front, path string, form url.Values) (view, *http.Response) {
	t.Helper()
	resp, err := client.PostForm(front+path, form)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v view
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v, resp
}

// released releases a herd and returns its result.
func released(t *testing.T, front string, form url.Values) (v view) {
	t.Helper()
	if _, resp := liveCommand(t, front, "/herd", form); resp.StatusCode != http.StatusOK {
		t.Fatalf("the herd was not released: %s", resp.Status)
	}
	eventually(t, 20*time.Second, "the end of the herd", func() bool {
		v, _ = liveCommand(t, front, "/herd/settings", nil)
		return !v.Running
	})
	return v
}

func (v view) each() map[string]strategyView {
	return map[string]strategyView{"bellwether": v.Bellwether, "singleflight": v.Singleflight, "without": v.Without}
}

// sum adds up the outcomes. After a herd's end they are the outcomes of all its requests.
func (s strategyView) sum() int { return s.Fresh + s.Stale + s.Waited + s.Failed }

func TestLive_Herd(t *testing.T) {
	front, _ := newTestServer(t)
	form := url.Values{"herd": {"1000"}, "delay_ms": {"300"}, "capacity": {"1000"}, "ttl_s": {"60"}}
	v := released(t, front.URL, form)
	if v.Bellwether.Loads != 1 || v.Singleflight.Loads != herdProcesses {
		t.Errorf("%d loads with Bellwether and %d with singleflight, want 1 and one a process", v.Bellwether.Loads, v.Singleflight.Loads)
	}
	// On a busy machine a few requests are so late that they find the page.
	if v.Without.Loads <= 500 || v.Without.Loads != v.Without.Waited {
		t.Errorf("without: %d loads for %d requests that waited, want one for each of almost 1000", v.Without.Loads, v.Without.Waited)
	}
	for name, s := range v.each() {
		counted := 0
		for i := range s.Served {
			counted += s.Served[i] + s.Errors[i]
		}
		if s.Requests != 1000 || s.Answered != 1000 || s.sum() != 1000 || counted != 1000 || s.Failed != 0 || s.Stale != 0 || s.Waited < 500 || s.Max < 290 {
			t.Errorf("%s: %+v, want 1000 requests of which almost all waited for a load", name, s)
		}
	}
	if v.Degraded != 0 {
		t.Errorf("%d loads without a lease", v.Degraded)
	}
	if p := v.Pages[0]; p.State != "fresh" || p.Epoch == "" || p.Loads != 0 || p.Waiting != 0 {
		t.Errorf("the page is %+v, want it fresh", p)
	}

	// The second herd finds the page in all stores.
	v = released(t, front.URL, nil)
	for name, s := range v.each() {
		if s.Loads != 0 || s.Fresh != 1000 {
			t.Errorf("%s: %+v, want a fresh page for all and no load", name, s)
		}
	}
	// After an invalidation no store has it.
	if v, _ = liveCommand(t, front.URL, "/herd/invalidate", nil); v.Pages[0].State != "none" {
		t.Errorf("the page is %+v after its invalidation", v.Pages[0])
	}
	v = released(t, front.URL, url.Values{"herd": {"100"}})
	if v.Bellwether.Loads != 1 || v.Singleflight.Loads != herdProcesses || v.Without.Loads <= herdProcesses {
		t.Errorf("%d, %d and %d loads after the invalidation", v.Bellwether.Loads, v.Singleflight.Loads, v.Without.Loads)
	}
}

func TestLive_LockerDown(t *testing.T) {
	front, _ := newTestServer(t)
	v := released(t, front.URL, url.Values{"herd": {"400"}, "delay_ms": {"300"}, "locker_down": {"1"}})
	if v.Bellwether.Loads < 1 || v.Bellwether.Loads > herdProcesses || v.Bellwether.Failed != 0 || v.LockerUp || v.Degraded == 0 {
		t.Errorf("without the locker: %+v, want 1 to %d loads and no failure", v, herdProcesses)
	}
}

func TestLive_StaleAndFailures(t *testing.T) {
	front, _ := newTestServer(t)
	released(t, front.URL, url.Values{"herd": {"100"}, "delay_ms": {"100"}, "ttl_s": {"1"}, "stale_s": {"60"}})
	eventually(t, 10*time.Second, "the page is stale", func() bool {
		v, _ := liveCommand(t, front.URL, "/herd/settings", nil)
		return v.Pages[0].State == "stale"
	})
	time.Sleep(200 * time.Millisecond) // singleflight's last load may have ended later
	v := released(t, front.URL, url.Values{"herd": {"400"}, "delay_ms": {"300"}, "origin_fails": {"1"}})
	if v.Bellwether.Failed != 0 || v.Bellwether.Stale != 400 {
		t.Errorf("with Bellwether: %+v, want 400 stale answers at once", v.Bellwether)
	}
	for name, s := range map[string]strategyView{"singleflight": v.Singleflight, "without": v.Without} {
		red := 0
		for _, n := range s.Errors {
			red += n
		}
		if s.Failed != 400 || red != 400 || s.TimedOut != 0 || s.Fresh+s.Stale+s.Waited != 0 {
			t.Errorf("%s: %+v, want 400 failures that the origin answered", name, s)
		}
	}
	eventually(t, 10*time.Second, "the failure is known", func() bool {
		v, _ = liveCommand(t, front.URL, "/herd/settings", nil)
		return v.Pages[0].Failures > 0
	})
}

// TestLive_FailureIsShared holds that with Bellwether one failure answers a herd for a missing page.
func TestLive_FailureIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen()
		defer p.close()
		if err := p.set(map[string][]string{"herd": {"100"}, "origin_fails": {"1"}}); err != nil {
			t.Fatal(err)
		}
		if err := p.release(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		v := p.look()
		for name, want := range map[string]int{"bellwether": 1, "singleflight": herdProcesses, "without": 100} {
			if s := v.each()[name]; s.Loads != want || s.Failed != 100 {
				t.Errorf("%s: %d loads and %d failures, want %d and 100", name, s.Loads, s.Failed, want)
			}
		}
		if v.Pages[0].State != "error" {
			t.Errorf("the page is %+v, want an error", v.Pages[0])
		}
		time.Sleep(2 * time.Second)
		if v = p.look(); v.Pages[0].State != "expired" && v.Pages[0].State != "none" {
			t.Errorf("after its moment the error is %+v", v.Pages[0])
		}
	})
}

func TestLive_MadeWith(t *testing.T) {
	front, _ := newTestServer(t)
	liveCommand(t, front.URL, "/herd", url.Values{"herd": {"20"}, "delay_ms": {"700"}, "ttl_s": {"9"}})
	// A herd's size is read at its release, the delay at each load.
	liveCommand(t, front.URL, "/herd/settings", url.Values{"herd": {"30"}, "delay_ms": {"800"}, "stale_s": {"30"}})
	var v view
	eventually(t, 10*time.Second, "the end of the herd", func() bool {
		v, _ = liveCommand(t, front.URL, "/herd/settings", nil)
		return !v.Running
	})
	if len(v.Changed) != 1 || v.Changed["delay_ms"] != 800 {
		t.Errorf("changed while the herd ran: %v, want the delay only", v.Changed)
	}
	v, _ = liveCommand(t, front.URL, "/herd/settings", url.Values{"ttl_s": {"20"}})
	if v.Settings["ttl_s"] != 20 || v.MadeWith["ttl_s"] != 9 || v.MadeWith["herd"] != 20 || v.MadeWith["delay_ms"] != 700 || len(v.Changed) != 1 {
		t.Errorf("the result was made with %v and changes of %v, want its own settings", v.MadeWith, v.Changed)
	}
	if v = released(t, front.URL, nil); len(v.Changed) != 0 || v.MadeWith["ttl_s"] != 20 || v.MadeWith["herd"] != 30 {
		t.Errorf("the next result was made with %v and changes of %v", v.MadeWith, v.Changed)
	}
}

func TestLive_TimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen()
		defer p.close()
		// The origin has time for 100 loads in 30 s, and all of them fail.
		if err := p.set(map[string][]string{"herd": {"400"}, "delay_ms": {"3000"}, "capacity": {"10"}, "origin_fails": {"1"}}); err != nil {
			t.Fatal(err)
		}
		if err := p.release(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(herdTime - time.Second)
		if v := p.look(); !v.Running || v.Without.TimedOut != 0 || v.Axis != herdTime.Milliseconds() {
			t.Errorf("before the limit: %+v", v)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		v := p.look()
		if v.Running || v.Without.Answered != 400 || v.Without.Failed != 400 {
			t.Errorf("after the limit: %+v, want an end", v)
		}
		if n := v.Without.TimedOut; n < 300 || n > 310 {
			t.Errorf("%d requests timed out, want the 300 for which the origin had no time, and at most its last 10 loads", n)
		}
		if ms := v.Without.Max; ms > float64(herdTime.Milliseconds()) {
			t.Errorf("the slowest answer took %v ms, over the limit", ms)
		}
	})
}

// TestLive_Trail holds that a view has the whole course of a herd, along a constant axis.
func TestLive_Trail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPen()
		defer p.close()
		if err := p.release(); err != nil { // 1000 requests, 100 places, 300 ms
			t.Fatal(err)
		}
		axis := p.look().Axis
		if axis != 4000 {
			t.Fatalf("the axis has %d ms, want 4000 for loads of 3 s", axis)
		}
		for range 29 {
			time.Sleep(100 * time.Millisecond)
			if v := p.look(); v.Axis != axis || !v.Running {
				t.Fatalf("after %d ms: an axis of %d ms, running is %v", v.Elapsed, v.Axis, v.Running)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		v := p.look()
		if v.Running || v.Elapsed != 3000 || v.Axis != axis {
			t.Fatalf("the herd took %d ms on an axis of %d, running is %v", v.Elapsed, v.Axis, v.Running)
		}
		for name, s := range v.each() {
			if s.Waited != 1000 || s.sum() != 1000 {
				t.Errorf("%s: %+v, want 1000 requests that waited", name, s)
			}
		}
		// A point each 40 ms: 1000 requests up to 300 ms, and without protection 100 fewer each 300 ms.
		for i, n := range v.Without.Trail {
			if want := 1000 - i*40/300*100; n != want {
				t.Errorf("without, after %d ms: %d in flight, want %d", i*40, n, want)
			}
		}
		for name, s := range map[string]strategyView{"bellwether": v.Bellwether, "singleflight": v.Singleflight} {
			if len(s.Trail) != 76 || s.Trail[7] != 1000 || s.Trail[8] != 0 || s.Trail[75] != 0 {
				t.Errorf("%s: %v, want 1000 until 280 ms and 0 from 320 to 3000 ms", name, s.Trail)
			}
		}
	})
}

// TestLive_AxisGrows holds that a herd that takes longer than promised is drawn to its end.
func TestLive_AxisGrows(t *testing.T) {
	h := herdRun{number: 1, settings: map[string]int{"herd": 1000, "capacity": 1000, "delay_ms": 300}}
	for elapsed, want := range map[time.Duration]time.Duration{
		0: time.Second, 900 * time.Millisecond: time.Second, 1100 * time.Millisecond: 2 * time.Second,
		29 * time.Second: herdTime, 31 * time.Second: herdTime,
	} {
		if got := h.axis(elapsed); got != want {
			t.Errorf("after %v: an axis of %v, want %v", elapsed, got, want)
		}
	}
}

func TestLive_PageNamesItsLimits(t *testing.T) {
	for _, want := range []string{
		fmt.Sprintf("A request without an answer after %.0f s has failed.", herdTime.Seconds()),
		fmt.Sprintf("Each fleet has %d processes", herdProcesses),
		fmt.Sprintf(`name="pages" min="1" max="%d"`, maxPages),
		fmt.Sprintf("const steps = %d,", trailSteps),
	} {
		if !strings.Contains(livePage, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, s := range settings {
		value := fmt.Sprintf(`max="%d"`, s.most)
		if s.most == 1 {
			value = `type="checkbox"`
		}
		control := regexp.MustCompile(`<input [^>]*name="` + s.name + `"[^>]*>`).FindString(livePage)
		if !strings.Contains(control, value) || s.most > 1 && !strings.Contains(control, fmt.Sprintf(`value="%d"`, s.value)) {
			t.Errorf("the control of %s is %s, want its limit and value", s.name, control)
		}
	}
}

func TestLive_Refuses(t *testing.T) {
	front, _ := newTestServer(t)
	for body, want := range map[string]string{
		"herd=5001":             `herd is "5001"; want a whole number from 1 to 5000`,
		"herd=-1":               "from 1 to 5000",
		"delay_ms=soon":         "from 0 to 3000",
		"ttl_s=":                "from 1 to 60",
		"colour=red":            `unknown setting "colour"`,
		"herd=10&locker_down=2": "from 0 to 1",
	} {
		resp, err := client.Post(front.URL+"/herd", "application/x-www-form-urlencoded", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var f failure
		err = json.NewDecoder(resp.Body).Decode(&f)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(f.Error, want) {
			t.Errorf("%s: %s, %q, %v; want 400 and %q", body, resp.Status, f.Error, err, want)
		}
	}
	v, _ := liveCommand(t, front.URL, "/herd", url.Values{"herd": {"10"}, "delay_ms": {"1000"}})
	if v.Run != 1 {
		t.Errorf("%d herds were released, want the first now", v.Run)
	}
	if _, resp := liveCommand(t, front.URL, "/herd", nil); resp.StatusCode != http.StatusConflict {
		t.Errorf("a second herd beside the first: %s, want 409", resp.Status)
	}

	// Another site's page must not press the buttons.
	if a := do(http.MethodPost, front.URL+"/herd", "Origin", "http://evil.test"); a.status != http.StatusForbidden {
		t.Errorf("from another origin: %v, want 403", a)
	}
}

// listen opens the event stream and returns its lines.
func listen(t *testing.T, front string) (*bufio.Scanner, *http.Response) {
	t.Helper()
	r, _ := http.NewRequest(http.MethodGet, front+"/herd/events", nil)
	r.Header.Set("Accept", "text/event-stream")
	resp, err := (&http.Client{Transport: client.Transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s, %v", resp.Status, resp.Header)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return lines, resp
}

func event(t *testing.T, lines *bufio.Scanner) (v view) {
	t.Helper()
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if err := json.Unmarshal([]byte(data), &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("the stream has ended: %v", lines.Err())
	return v
}

// TestLive_Events holds that a listener gets the state and its changes, until it leaves.
func TestLive_Events(t *testing.T) {
	p, s := newPen(), &server{cache: bellwether.NewMiddleware(bellwether.HTTPOptions{})}
	t.Cleanup(func() { s.cache.Close() })
	front := httptest.NewServer(s.router(site{routes: p.routes}))
	t.Cleanup(front.Close) // after the cleanups of the listeners, for whose ends it waits
	t.Cleanup(p.close)
	lines, resp := listen(t, front.URL)
	if v := event(t, lines); v.Run != 0 || v.Settings["herd"] != 1000 {
		t.Errorf("the first event is %+v", v)
	}
	liveCommand(t, front.URL, "/herd", url.Values{"herd": {"50"}, "delay_ms": {"800"}})
	under := 0
	for {
		v := event(t, lines)
		if v.Run == 1 && v.Bellwether.Answered == 0 && v.Bellwether.Requests == 50 && v.Pages[0].Loads == 1 {
			under++
		}
		if v.Run == 1 && !v.Running {
			break
		}
	}
	if under < 2 {
		t.Errorf("%d events of 50 requests under way, want several in 800 ms", under)
	}
	resp.Body.Close()
	eventually(t, 5*time.Second, "nobody listens any more", func() bool {
		p.audience.mu.Lock()
		defer p.audience.mu.Unlock()
		return p.audience.count == 0
	})

	if a := do(http.MethodGet, front.URL+"/herd/events"); a.status != http.StatusNotAcceptable || !strings.Contains(a.body, "curl -N") {
		t.Errorf("without an Accept: %v, want 406 with the command", a)
	}
	for range maxListeners {
		listen(t, front.URL)
	}
	if a := do(http.MethodGet, front.URL+"/herd/events", "Accept", "text/event-stream"); a.status != http.StatusServiceUnavailable {
		t.Errorf("one listener more than there may be: %v", a)
	}
}

// TestServer_TermEndsListeners holds that neither an open page nor a running herd delays the end.
func TestServer_TermEndsListeners(t *testing.T) {
	p := start(t)
	lines, _ := listen(t, "http://"+p.addr)
	event(t, lines)
	liveCommand(t, "http://"+p.addr, "/herd", url.Values{"herd": {"500"}, "delay_ms": {"3000"}, "capacity": {"10"}})
	asked := time.Now()
	p.signal(t, syscall.SIGTERM)
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil && err != io.ErrUnexpectedEOF {
		t.Errorf("the stream broke off: %v", err)
	}
	status, at := p.end(t)
	if took := at.Sub(asked); status != 0 || took > 2*time.Second || strings.Contains(p.logged(), "cut off") {
		t.Errorf("status %d after %v, want 0 at once", status, took)
	}
}
