package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
)

// The tests here let the live page's herd loose without a browser.

// liveCommand sends one of the page's commands and returns the state it brings.
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

// released lets a herd loose and returns what came of it.
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

func TestLive_Herd(t *testing.T) {
	front, _ := newTestServer(t)
	form := url.Values{"herd": {"1000"}, "delay_ms": {"200"}, "capacity": {"1000"}, "ttl_s": {"60"}}
	v := released(t, front.URL, form)
	if v.Guarded.Calls != 1 || v.Unguarded.Calls != 1000 {
		t.Errorf("origin calls: %d guarded, %d not; want 1 and 1000", v.Guarded.Calls, v.Unguarded.Calls)
	}
	for _, s := range []sideView{v.Guarded, v.Unguarded} {
		sum := 0
		for _, n := range s.Waits {
			sum += n
		}
		if s.Requests != 1000 || s.Answered != 1000 || s.InFlight != 0 || s.Failed != 0 || sum != 1000 || s.Max < 190 {
			t.Errorf("%+v, want 1000 requests, all of them answered after about 200 ms", s)
		}
	}
	// On a busy machine a few are so late that the page is there already.
	if v.Waited+int(v.Hits) != 1000 || v.Waited < 500 || v.Stale != 0 || v.Degraded != 0 {
		t.Errorf("%+v, want 1000 of which almost all waited for the rebuild", v)
	}
	if p := v.Pages[0]; p.State != "fresh" || p.Epoch == "" || p.Rebuilds != 0 || p.Waiting != 0 {
		t.Errorf("the page is %+v, want it fresh", p)
	}

	// The second herd finds it, but for the processes that ask the store first.
	if v = released(t, front.URL, nil); v.Guarded.Calls != 0 || v.Guarded.Answered != 1000 || int(v.Hits)+v.Waited != 1000 {
		t.Errorf("%d origin calls, %+v; want none", v.Guarded.Calls, v)
	}
	if v, _ = liveCommand(t, front.URL, "/herd/invalidate", nil); v.Pages[0].State != "none" {
		t.Errorf("the page is %+v after its invalidation", v.Pages[0])
	}
}

func TestLive_Switches(t *testing.T) {
	front, _ := newTestServer(t)
	// Without the lock engine each process rebuilds for itself.
	form := url.Values{"herd": {"400"}, "delay_ms": {"300"}, "ttl_s": {"1"}, "stale_s": {"60"}, "locker_down": {"1"}}
	v := released(t, front.URL, form)
	if v.Guarded.Calls < 1 || v.Guarded.Calls > herdProcesses || v.Guarded.Failed != 0 || v.LockerUp || v.Degraded == 0 {
		t.Errorf("without the lock engine: %+v, want 1 to %d calls and no failure", v, herdProcesses)
	}
	// A stale page is served at once, and stays if the origin fails.
	eventually(t, 10*time.Second, "the page is stale", func() bool {
		v, _ = liveCommand(t, front.URL, "/herd/settings", url.Values{"locker_down": {"0"}, "origin_fails": {"1"}})
		return v.Pages[0].State == "stale"
	})
	v = released(t, front.URL, nil)
	if v.Guarded.Failed != 0 || v.Unguarded.Failed != 400 || v.Stale < 390 {
		t.Errorf("with a stale page and an origin that fails: %+v, want no failure with the fleet and 400 without", v)
	}
	eventually(t, 10*time.Second, "the failure is known", func() bool {
		v, _ = liveCommand(t, front.URL, "/herd/settings", nil)
		return v.Pages[0].Failures > 0
	})
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

	// Another site's page may not press the buttons.
	r, _ := http.NewRequest(http.MethodPost, front.URL+"/herd", nil)
	r.Header.Set("Origin", "http://evil.test")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("from another origin: %s, want 403", resp.Status)
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

// event reads the next one.
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

// TestLive_Events holds that a listener hears how things stand at once, then
// what happens while it happens, and is forgotten when it leaves.
func TestLive_Events(t *testing.T) {
	p, s := newPen(), &server{cache: bellwether.NewMiddleware(bellwether.HTTPOptions{})}
	t.Cleanup(func() { s.cache.Close() })
	front := httptest.NewServer(s.router(site{routes: p.routes}))
	t.Cleanup(front.Close) // after those of the listeners, whose ends it waits for
	t.Cleanup(p.close)
	lines, resp := listen(t, front.URL)
	if v := event(t, lines); v.Run != 0 || v.Settings["herd"] != 1000 {
		t.Errorf("the first event is %+v", v)
	}
	liveCommand(t, front.URL, "/herd", url.Values{"herd": {"50"}, "delay_ms": {"800"}})
	under := 0
	for {
		v := event(t, lines)
		if v.Run == 1 && v.Guarded.InFlight == 50 && v.Pages[0].Rebuilds == 1 {
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

// TestServer_TermEndsListeners holds that neither a page that is looked at nor a
// herd on its way delays the end.
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
