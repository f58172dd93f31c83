package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
)

// This file is the world of TestServer_EachClientGetsItsOwn: a server for HTTP/1.1 and h2c, a failing origin,
// clients with identities, and a judge. Each body names its request, so no verdict depends on time.

// serveBothProtocols is the server for HTTP/1.1 and h2c, with panicByCookie behind its cache.
func serveBothProtocols(args []string, _, stderr io.Writer) int {
	fail := func(err error) int {
		fmt.Fprintln(stderr, err)
		return 1
	}
	c, err := parse(args)
	if err != nil {
		return fail(err)
	}
	front, err := net.Listen("tcp", c.addr)
	if err != nil {
		return fail(err)
	}
	back, err := net.Listen("tcp", c.admin)
	if err != nil {
		return fail(err)
	}
	engines, err := connect(c)
	if err != nil {
		return fail(err)
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	quiet := newRepeats(logger)
	engines.join(&c.cache.Fleet)
	c.cache.OnError = func(_ string, err error) { quiet.warn(kindOf(err), "cache error", "err", err) }
	s := &server{config: c, log: logger, addr: front.Addr(), started: time.Now()}
	s.cache, s.metrics = newCache(c.cache)
	upstream := s.site(quiet)
	panicky := upstream
	panicky.routes = func(r chi.Router) { upstream.routes(r.With(panicByCookie)) }

	public := newHTTPServer(s.router(panicky), logger)
	public.ErrorLog = log.New(io.Discard, "", 0) // each such panic would log a stack
	public.Protocols = new(http.Protocols)
	public.Protocols.SetHTTP1(true)
	public.Protocols.SetUnencryptedHTTP2(true)
	engines.warm(context.Background())
	logger.Info("listening", "addr", front.Addr(), "pid", os.Getpid())
	logger.Info("admin listening", "addr", back.Addr())
	go func() { fail(newHTTPServer(s.adminRouter(), logger).Serve(back)) }()
	return fail(public.Serve(front))
}

// panicsPath is in the paths of the pages whose handler panics.
const panicsPath = "/panics/"

// panicByCookie panics for the failing clients after the origin's answer, so the test chooses the moment.
func panicByCookie(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := identityOf(r)
		if !strings.Contains(r.URL.Path, panicsPath) || !who.fails() {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic("the handler panics for " + who.String())
	})
}

// An identity distinguishes one client's requests from another's.
type identity struct {
	Client                string // of a field that no cache knows, the only difference of anonymous clients
	Cookie, Authorization string
}

func identityOf(r *http.Request) identity {
	return identity{r.Header.Get("X-Client"), r.Header.Get("Cookie"), r.Header.Get("Authorization")}
}

func (i identity) String() string {
	return fmt.Sprintf("client %s (Cookie %q, Authorization %q)", i.Client, i.Cookie, i.Authorization)
}

// account is the number in the cookie or in the Authorization, 0 for an anonymous client.
func (i identity) account() int {
	n, _ := strconv.Atoi(cmp.Or(strings.TrimPrefix(i.Cookie, "sid="), strings.TrimPrefix(i.Authorization, "Bearer ")))
	return n
}

// fails reports whether the client's account breaks some pages: two accounts of five, never anonymous.
func (i identity) fails() bool { n := i.account(); return n > 0 && n%5 < 2 }

// An audience is the part of an identity on which a page depends.
type audience struct{ client, cookie, authorization bool }

var (
	everybody   = audience{}                                  // all clients may share the page
	oneClient   = audience{client: true}                      // no two clients may share it
	oneSession  = audience{cookie: true, authorization: true} // clients with the same credentials may share it
	oneLoggedIn = audience{authorization: true}
)

// admits reports whether a page for one client may go to another.
func (a audience) admits(made, asks identity) bool {
	return (!a.client || made.Client == asks.Client) &&
		(!a.cookie || made.Cookie == asks.Cookie) &&
		(!a.authorization || made.Authorization == asks.Authorization)
}

// A flaw is how an answer fails.
type flaw int

const (
	noFlaw flaw = iota
	failure5xx
	dropped  // the connection ends without an answer, and the proxy answers 502
	tooShort // 25 bytes after Content-Length: 100
	cutOff   // a chunked body breaks off
	panics   // the handler in the server's process panics, by panicByCookie
)

type hostilePage struct {
	kind string // one of kinds
	path string // after the run's prefix, without the number of the URL

	cacheControl, vary string
	setsCookie         bool
	// The Last-Modified of a deployed page is the deployment's, and each request with it gets a
	// 304. The entity tag of a tagged page is the session's.
	deployed, tagged bool

	of       audience
	own      flaw // of the answers to the failing clients
	turn     flaw // of each third answer, to any client
	size     int  // of the body, at least
	slow     bool // the body comes in two halves
	left     bool // half of the clients leave
	directed bool // the requests have directives
}

// deployment is the Last-Modified of all deployed pages.
const deployment = "Tue, 03 Nov 2026 10:00:00 GMT"

// maxBody is the -max-body of the servers, and overMaxBody a size beyond it.
const (
	maxBody     = 4 << 10
	overMaxBody = 20 << 10
)

// kinds are the kinds of page, in the order of the report.
var kinds = []string{"private", "Set-Cookie", "Vary", "no-cache", "Authorization", "errors", "panics", "aborts", "over MaxBodyBytes", "leaving", "directives"}

// hostilePages returns the pages of all kinds. A page has any number of URLs, which end in a number.
func hostilePages() []hostilePage {
	pages := []hostilePage{
		{kind: "private", cacheControl: "private", of: oneClient},
		{kind: "private", cacheControl: "private, max-age=2", of: oneClient},
		{kind: "private", cacheControl: "no-store", of: oneClient},

		{kind: "Set-Cookie", setsCookie: true, of: oneClient},
		{kind: "Set-Cookie", setsCookie: true, cacheControl: "max-age=2", of: oneClient},

		{kind: "Vary", vary: "Cookie", cacheControl: "max-age=1", of: oneSession},
		{kind: "Vary", vary: "Cookie", cacheControl: "max-age=1, stale-while-revalidate=1", tagged: true, of: oneSession},
		{kind: "Vary", vary: "Cookie, Authorization", cacheControl: "public, max-age=1", of: oneSession},

		{kind: "no-cache", cacheControl: "no-cache", deployed: true, of: oneSession},
		{kind: "no-cache", cacheControl: "no-cache, max-age=2", deployed: true, of: oneSession},

		{kind: "Authorization", cacheControl: "max-age=1", of: oneLoggedIn},
		{kind: "Authorization", cacheControl: "public, max-age=1", of: everybody},
		{kind: "Authorization", of: oneClient},

		{kind: "errors", own: failure5xx, of: oneClient},
		{kind: "errors", own: failure5xx, cacheControl: "private", of: oneClient},
		{kind: "errors", own: dropped, of: oneClient},
		// Like a framework whose error pages name no Vary of their own.
		{kind: "errors", own: failure5xx, vary: "Cookie", cacheControl: "max-age=1", of: oneSession},

		{kind: "panics", own: panics, of: oneClient},
		{kind: "panics", own: panics, cacheControl: "private", of: oneClient},

		{kind: "aborts", turn: tooShort, cacheControl: "max-age=1", of: everybody},
		{kind: "aborts", turn: cutOff, cacheControl: "max-age=1", of: everybody},
		{kind: "aborts", own: tooShort, of: oneClient},
		{kind: "aborts", own: cutOff, of: oneClient},

		{kind: "over MaxBodyBytes", size: overMaxBody, cacheControl: "max-age=1", of: everybody},
		{kind: "over MaxBodyBytes", size: overMaxBody, cacheControl: "private", of: oneClient},
		{kind: "over MaxBodyBytes", size: overMaxBody, vary: "Cookie", cacheControl: "max-age=1", of: oneSession},
		{kind: "over MaxBodyBytes", size: overMaxBody, of: oneClient},

		{kind: "leaving", slow: true, left: true, cacheControl: "max-age=1", of: everybody},
		{kind: "leaving", slow: true, left: true, cacheControl: "private", of: oneClient},
		{kind: "leaving", slow: true, left: true, vary: "Cookie", cacheControl: "max-age=1", of: oneSession},
		{kind: "leaving", slow: true, left: true, size: overMaxBody, of: oneClient},

		{kind: "directives", directed: true, turn: failure5xx, cacheControl: "max-age=1, stale-while-revalidate=1, stale-if-error=1", of: everybody},
		{kind: "directives", directed: true, vary: "Cookie", cacheControl: "max-age=1, stale-if-error=1", tagged: true, of: oneSession},
		{kind: "directives", directed: true, cacheControl: "private", of: oneClient},
		{kind: "directives", directed: true, of: oneClient},
	}
	for i := range pages {
		pages[i].path = fmt.Sprintf("/%s/%d/", strings.ReplaceAll(pages[i].kind, " ", "-"), i)
	}
	return pages
}

// directives are the request directives of RFC 9111 section 5.2.1 and of RFC 5861.
var directives = []string{
	"no-cache", "max-age=0", "max-age=1", "max-stale", "max-stale=1", "min-fresh=1", "only-if-cached", "no-store", "no-transform",
	"stale-if-error=2", "no-cache, stale-if-error=2", "max-stale, only-if-cached",
}

// A label is the first line of a body. It names the body's request.
type label struct {
	Path string
	identity
	Serial int
	Filler int // number of bytes between the label and the checksum
}

// compose returns a body of at least size bytes: the label, repetitions of the serial, and a checksum.
func compose(path string, client identity, serial, size int) string {
	filler := strings.Repeat(fmt.Sprintf("%08d ", serial), 1+size/9)
	first, err := json.Marshal(label{path, client, serial, len(filler)})
	if err != nil {
		panic(err)
	}
	text := string(first) + "\n" + filler
	return text + checksum(text)
}

func checksum(text string) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text))) }

// The defects of a body, and of an answer.
const (
	foreign  = "foreign" // another client's
	wrong    = "wrong"   // another page's, or mixed from two bodies
	short    = "short"   // incomplete, but reported as complete
	anothers = "another's error"
)

// decompose returns a body's label, or its defect. A cache's or proxy's own error page has neither.
func decompose(body string) (l label, defect string) {
	if !strings.HasPrefix(body, "{") {
		return l, ""
	}
	first, rest, _ := strings.Cut(body, "\n")
	if json.Unmarshal([]byte(first), &l) != nil || len(rest) < l.Filler+len(checksum("")) {
		return l, short
	}
	end := len(first) + len("\n") + l.Filler
	if body[end:] != checksum(body[:end]) {
		return l, wrong
	}
	return l, ""
}

// A hostileOrigin serves hostile pages and numbers its answers.
type hostileOrigin struct {
	prefix string
	pages  []hostilePage
	serial atomic.Int64
}

func (o *hostileOrigin) page(path string) (hostilePage, bool) {
	path = path[:strings.LastIndexByte(path, '/')+1]
	i := slices.IndexFunc(o.pages, func(p hostilePage) bool { return o.prefix+p.path == path })
	if i < 0 {
		return hostilePage{}, false
	}
	return o.pages[i], true
}

func (o *hostileOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := o.page(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	who, serial := identityOf(r), int(o.serial.Add(1))
	time.Sleep(time.Duration(serial%4) * 4 * time.Millisecond)
	body := compose(r.URL.Path, who, serial, max(p.size, 100))

	happens := noFlaw
	if who.fails() {
		happens = p.own
	}
	if p.turn != noFlaw && serial%3 == 0 {
		happens = p.turn
	}
	h := w.Header()
	h.Set("X-Serial", strconv.Itoa(serial))
	switch happens {
	case failure5xx:
		w.WriteHeader([]int{http.StatusInternalServerError, http.StatusBadGateway}[who.account()%2])
		io.WriteString(w, body)
		return
	case dropped:
		panic(http.ErrAbortHandler)
	}
	for name, value := range map[string]string{"Cache-Control": p.cacheControl, "Vary": p.vary} {
		if value != "" {
			h.Set(name, value)
		}
	}
	if p.setsCookie {
		h.Set("Set-Cookie", "seen="+who.Client)
	}
	if p.deployed {
		h.Set("Last-Modified", deployment)
		if r.Header.Get("If-Modified-Since") == deployment {
			h.Del("X-Serial")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if p.tagged {
		tag := fmt.Sprintf(`W/"%s %s"`, who.Cookie, who.Authorization)
		h.Set("ETag", tag)
		if strings.Contains(r.Header.Get("If-None-Match"), tag) && serial%2 == 0 {
			h.Del("X-Serial")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	switch happens {
	case tooShort:
		h.Set("Content-Length", "100")
		io.WriteString(w, body[:25])
		panic(http.ErrAbortHandler)
	case cutOff:
		io.WriteString(w, body[:len(body)/2])
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	if p.slow || p.size > 0 {
		io.WriteString(w, body[:len(body)/2])
		http.NewResponseController(w).Flush()
		body = body[len(body)/2:]
	}
	if p.slow {
		time.Sleep(time.Duration(5+serial%10) * time.Millisecond)
	}
	io.WriteString(w, body)
}

// A visitor is one client, with connections of its own.
type visitor struct {
	identity
	client http.Client
}

// newVisitor returns the client of a number. A third is anonymous, a third has a cookie, and a third has
// Authorization, half of these with a cookie. Half of each third speaks HTTP/1.1, half h2c.
func newVisitor(n int) *visitor {
	v := &visitor{identity: identity{Client: strconv.Itoa(n)}}
	account := strconv.Itoa(n)
	switch n % 6 {
	case 1, 4:
		v.Cookie = "sid=" + account
	case 2:
		v.Authorization = "Bearer " + account
	case 5:
		v.Cookie, v.Authorization = "sid="+account, "Bearer "+account
	}
	protocols := new(http.Protocols)
	if n/6%2 == 0 {
		protocols.SetHTTP1(true)
	} else {
		protocols.SetUnencryptedHTTP2(true)
	}
	v.client = http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{Protocols: protocols, DisableCompression: true, MaxIdleConnsPerHost: 4},
	}
	return v
}

// A visit is one request with its answer.
type visit struct {
	page      hostilePage
	asks      identity
	path      string
	directive string
	gone      bool // the client left before the end of the answer
	protocol  int  // 1 or 2; 0 without an answer
	answer
}

func (v *visitor) visit(p hostilePage, server *process, path string, random *rand.Rand) visit {
	out := visit{page: p, asks: v.identity, path: path}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if p.left && random.IntN(2) == 0 {
		defer time.AfterFunc(time.Duration(1+random.IntN(25))*time.Millisecond, cancel).Stop()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.addr+out.path, nil)
	if err != nil {
		panic(err)
	}
	if p.directed {
		out.directive = directives[random.IntN(len(directives))]
	}
	for name, value := range map[string]string{
		"X-Client": v.Client, "Cookie": v.Cookie, "Authorization": v.Authorization, "Cache-Control": out.directive,
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	began := time.Now()
	resp, err := v.client.Do(r)
	if err == nil {
		var body []byte
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		out.protocol = resp.ProtoMajor
		out.status, out.header, out.body = resp.StatusCode, resp.Header, string(body)
	}
	out.err, out.took = err, time.Since(began)
	out.gone = err != nil && errors.Is(ctx.Err(), context.Canceled)
	return out
}

// mayFail reports whether the origin fails for this client, always or sometimes.
func (v visit) mayFail() bool {
	return v.page.turn != noFlaw || v.page.own != noFlaw && v.asks.fails()
}

// defect returns the defect of the answer, empty without one. The client must not have left.
func (v visit) defect() string {
	if v.err != nil {
		if v.mayFail() {
			return ""
		}
		return anothers
	}
	l, defect := decompose(v.body)
	labelled := l.Path != ""
	switch {
	case defect != "":
		return defect
	case labelled && (l.Path != v.path || v.header.Get("X-Serial") != strconv.Itoa(l.Serial)):
		return wrong
	case labelled && !v.page.of.admits(l.identity, v.asks):
		return foreign
	case v.header.Get("Set-Cookie") != "" && v.header.Get("Set-Cookie") != "seen="+v.asks.Client:
		return foreign
	case v.status == http.StatusOK && labelled:
		return ""
	case v.status == http.StatusOK && v.body == "":
		return short
	case v.status == http.StatusOK:
		return wrong
	case v.status == http.StatusGatewayTimeout && strings.Contains(v.directive, "only-if-cached"):
		return "" // RFC 9111 section 5.2.1.7
	case v.mayFail():
		return ""
	}
	return anothers
}

func (v visit) String() string {
	body := v.body
	if len(body) > 160 {
		body = body[:160] + "..."
	}
	return fmt.Sprintf("%s asks for %s (%s) and gets %d, Cache-Status %q, %q, %v",
		v.asks, v.path, cmp.Or(v.directive, "no directive"), v.status, v.header.Get("Cache-Status"), body, v.err)
}

// A tally counts the answers of one kind of page.
type tally struct {
	responses, left, failed int
	defects                 map[string]int
	examples                map[string]visit // the first of each defect
}

// The tallies are the tally of each kind.
type tallies struct {
	judged atomic.Int64

	mu        sync.Mutex // guards the others
	of        map[string]*tally
	protocols [3]int // responses over HTTP/1.1 and h2c, by their number
}

func newTallies() *tallies {
	all := &tallies{of: map[string]*tally{}}
	for _, kind := range kinds {
		all.of[kind] = &tally{defects: map[string]int{}, examples: map[string]visit{}}
	}
	return all
}

func (all *tallies) enter(v visit) {
	defect := ""
	if !v.gone {
		all.judged.Add(1)
		defect = v.defect()
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.protocols[v.protocol]++
	t := all.of[v.page.kind]
	switch {
	case v.gone:
		t.left++
		return
	case defect != "":
		if t.defects[defect]++; t.defects[defect] == 1 {
			t.examples[defect] = v
		}
	case v.err != nil || v.status >= 500:
		t.failed++
	}
	t.responses++
}

// String is the table of the report.
func (all *tallies) String() string {
	var out strings.Builder
	row := func(kind string, responses, left, failed any, foreign, wrong, short, anothers any) {
		fmt.Fprintf(&out, "%-14s %9v %8v %11v %8v %6v %6v %15v\n", kind, responses, left, failed, foreign, wrong, short, anothers)
	}
	row("kind", "responses", "+ left", "own errors", foreign, wrong, short, anothers)
	for _, kind := range kinds {
		t := all.of[kind]
		row(kind, t.responses, t.left, t.failed, t.defects[foreign], t.defects[wrong], t.defects[short], t.defects[anothers])
	}
	return out.String()
}
