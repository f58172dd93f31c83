package page

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is what goes past the cache, to the handler with the client's own
// ResponseWriter or a look through it, and what the cache learns on the way.

// passReal hands the request to the handler, with the real ResponseWriter. So our word
// about it is there before the handler's. With HiddenFields it is pass.
func (m *Middleware) passReal(w http.ResponseWriter, r *http.Request, next http.Handler, why httpcache.Status) {
	if len(m.hidden) > 0 {
		m.pass(w, r, next, why)
		return
	}
	why.AppendTo(w.Header())
	next.ServeHTTP(w, r)
}

// pass hands the request to the handler.
func (m *Middleware) pass(w http.ResponseWriter, r *http.Request, next http.Handler, why httpcache.Status) {
	u := &watchedWriter{ResponseWriter: w, m: m}
	u.before = func(int) { why.AppendTo(w.Header()) }
	if r.Method == http.MethodHead {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r, u.cut = r.WithContext(ctx), cancel
	}
	u.run(func() { next.ServeHTTP(u, r) })
}

// pass hands the request to the handler, as the last resort, unless it wants none.
func (q *query) pass(why httpcache.Status) {
	if q.directives.OnlyIfCached {
		q.notCached()
		return
	}
	q.bypassed()
	q.m.pass(q.w, q.r, q.next, why)
}

// passUncacheable hands the request to the handler because the last response to
// its key was not for sharing. One that is ends that.
func (q *query) passUncacheable(key string, it *Item) {
	q.bypassed()
	reason := it.Value.reason
	why := httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reason}
	if reason == reasonSlow {
		if !q.m.through.TryAcquire(1) {
			replyFailure(q.w, why, http.StatusServiceUnavailable)
			return
		}
		defer q.m.through.Release(1)
	}
	if q.r.Method != http.MethodGet || q.request.Credentials {
		q.m.pass(q.w, q.r, q.next, why)
		return
	}
	sent := time.Now()
	cacheable := false
	w := newHeldWriter(q.m, q.w)
	spare := q.spared(key)
	if spare != nil {
		w.holds = httpcache.IsServerError
	}
	w.before = func(status int) {
		header, now := within(w.Header(), w.untouched), time.Now()
		j := httpcache.Judge(q.request, status, header, sent, now, q.m.options.Rules)
		cacheable = j.Shared && !isEventStream(header) && headerBytes(header) <= maxHeader && (reason != reasonTooLarge || q.m.fits(header))
		if !cacheable && reason != reasonTooLarge && tellsAudience(status) {
			q.m.prolong(key, it, cmp.Or(j.Reason, reason), now.Sub(sent))
		}
		why.AppendTo(w.Header())
	}
	q.next.ServeHTTP(w, q.r)
	if w.held != nil {
		w.reset()
		q.replySpare(key, spare, why)
		return
	}
	w.end()
	if cacheable {
		q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
	}
}

// prolong says once more that a key's responses are not for sharing, before that is
// forgotten: where such responses go on, nobody queues to find that out. The present
// response took so long.
func (m *Middleware) prolong(key string, it *Item, reason string, took time.Duration) {
	if took > m.options.RebuildTimeout {
		reason = reasonSlow
	}
	f := m.uncacheableFor(took)
	if it.FreshUntil-m.cache.Now() < f.TTL/2 {
		m.replace(key, it, &Response{kind: uncacheable, reason: reason}, f)
	}
}

// fits reports whether a response says that it is not too large to be stored.
func (m *Middleware) fits(h http.Header) bool {
	n, ok := contentLength(h)
	return ok && n <= m.options.MaxBody
}

// replace puts res in the place of old, behind the client's back: it does not wait
// for the store. Of a herd whose responses all say the same, one does so.
func (m *Middleware) replace(key string, old *Item, res *Response, f items.Windows) {
	if !m.cache.HoldsNear(key, old) {
		return
	}
	if _, others := m.replacing.LoadOrStore(key, nil); others {
		return
	}
	m.cache.Replace(key, old, res, f, func() { m.replacing.Delete(key) })
}

// passChecked asks the handler, with the stored validators in the place of the
// request's own conditions, and answers with what is stored if that still holds.
// Each request asks for itself: what the handler says to one is not said to
// another.
func (q *query) passChecked(key string, it *Item) {
	q.bypassed()
	kept := it.Value
	stale := kept.head()
	r := q.r.Clone(ownRoute(q.r.Context())) // the handler may have to be asked again
	if !httpcache.ValidatedFor(q.request, stale, q.m.options.Rules) || !httpcache.SetConditions(r.Header, stale) {
		q.m.pass(q.w, q.r, q.next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: kept.reason})
		return
	}
	sent := time.Now()
	w := newHeldWriter(q.m, q.w)
	w.holds = func(status int) bool { return status == http.StatusNotModified }
	status := httpcache.Status{Fwd: httpcache.FwdStale}
	w.before = func(code int) {
		header := within(w.Header(), w.untouched)
		j := httpcache.Judge(q.request, code, header, sent, time.Now(), q.m.options.Rules)
		switch {
		case j.Shared:
			q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
		case code == http.StatusOK && !(q.r.Method == http.MethodHead && httpcache.HeadAgrees(stale, header)):
			// Something else by now. What changes from one request to the next
			// is not worth keeping, and the next flight will see.
			q.m.replace(key, it, &Response{kind: uncacheable, reason: j.Reason}, q.m.uncacheableFor(time.Since(sent)))
		}
		status.FwdStatus = code
		status.AppendTo(q.w.Header())
	}
	q.next.ServeHTTP(w, r)
	if w.held == nil {
		w.end()
		return
	}
	w.reset()
	now := time.Now()
	header := within(w.held, w.untouched)
	if !httpcache.Selects(stale, header) {
		q.m.pass(q.w, q.r, q.next, httpcache.Status{Fwd: httpcache.FwdStale})
		return
	}
	d := httpcache.ResponseDirectives(header, q.m.options.Rules.Targets...)
	fresh := httpcache.Freshen(stale, httpcache.StoredHeader(header, d, now))
	age := httpcache.InitialAge(header, sent, now)
	if httpcache.JudgeAged(q.request, kept.status, fresh, age, now, q.m.options.Rules).Shared {
		q.m.replace(key, it, &Response{kind: uncacheable}, items.Windows{})
	}
	status.FwdStatus = http.StatusNotModified
	writeStored(q.w, q.r, stored{q.m, key, kept.status, fresh, kept.guessed, kept.body, age, now}, status)
}

// passUnsafe hands a request that may change things to the handler, and invalidates
// what it has made out of date (RFC 9111 section 4.4) before its client hears of
// the success: a request that the client makes after that sees the change.
//
// As late as that, since a transaction around the handler may be committed when it
// has returned; and then in any case, as what others have read before is old.
func (m *Middleware) passUnsafe(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method == http.MethodConnect {
		m.passReal(w, r, next, httpcache.Status{Fwd: httpcache.FwdMethod})
		return
	}
	t, ok := m.target(r)
	if !ok {
		m.passReal(w, r, next, httpcache.Status{Fwd: httpcache.FwdMethod}) // it has changed nothing that is kept
		return
	}
	if r.Method == http.MethodPost && !m.options.Shared && !m.forbids(w.Header()) {
		m.passPost(w, r, next, t)
		return
	}
	u := &watchedWriter{ResponseWriter: w, m: m}
	var changed httpcache.Changed
	u.before = func(status int) {
		changed = m.changedBy(t, status, u.Header())
		httpcache.Status{Fwd: httpcache.FwdMethod}.AppendTo(u.Header())
	}
	u.heard = func() { m.invalidateChanged(r.Context(), changed) }
	u.run(func() { next.ServeHTTP(u, r) })
}

// passPost is passUnsafe for a POST whose response may say that it is that of
// the next GET (RFC 9110 section 9.3.3). It is kept only if no other unsafe
// request for the key came in between. Another process's cannot be seen, so
// where a fleet shares a store, no such response is kept.
func (m *Middleware) passPost(w http.ResponseWriter, r *http.Request, next http.Handler, t target) {
	witness := m.cache.Witness(t.key)
	defer witness.End()
	sent, outer := time.Now(), maps.Clone(w.Header())
	u := m.newKeptWriter(w, r)
	var (
		changed httpcache.Changed
		drops   int
	)
	u.heard = func() {
		if m.invalidateChanged(r.Context(), changed) {
			drops++
		}
	}
	u.before = func(status int) {
		changed = m.changedBy(t, status, u.Header())
		now := time.Now()
		header := httpcache.CanonicalHeader(u.Header())
		own := within(u.Header(), outer)
		var d httpcache.RequestDirectives
		if !m.options.IgnoreRequestDirectives {
			d = httpcache.ParseRequest(r.Header)
		}
		j := httpcache.Judge(m.request(r, t, d), status, own, sent, now, m.options.Rules)
		// As in decide; and what a GET would not be asked with, nobody is given. By the
		// whole header: a Vary or a cookie may be the handler's too, if it has set the same.
		if httpcache.PostStorable(t.url, status, header, j) && m.plainRequest(r, t) && headerBytes(header) <= maxHeader && !isEventStream(header) {
			u.keepAs(status, own, j, now)
		}
		httpcache.Status{Fwd: httpcache.FwdMethod}.AppendTo(u.Header())
	}
	u.runBelowServer(next)
	if res, f, ok := u.kept(); ok {
		witness.Keep(res, f, drops)
	}
}

// passCredentials hands a request with credentials to the handler, unless it is known that
// responses under the key are for all clients. It reports whether it has. Until that is
// known, such requests neither wait for others nor keep others waiting: what the handler
// answers to one user may be slow, and for nobody else.
//
// The first response that is for all is kept on its way, if a request without
// credentials would have got the same, there is nothing that it would take the place of, and
// it is small: it is held in memory for as long as its client takes.
func (q *query) passCredentials(key string) bool {
	m := q.m
	switch m.learntAuthorized(key) {
	case open:
		return false
	case uncacheable:
		q.pass(httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization})
		return true
	}
	q.budget = gate.NewBudget(m.options.EngineTimeout)
	apart := m.cache.Apart(key, q.budget)
	it := apart.Find(q.r.Context())
	switch {
	case it == nil:
	case !it.Held && it.BackingOff(m.cache.Now()):
		return false // it has failed, and nobody is to try again yet
	case it.Held && (it.Value.kind != plain || q.mayHave(it.Value)):
		return false // that tells where to go, or that it is for all
	}
	why := httpcache.Status{Fwd: httpcache.FwdBypass, Detail: reasonAuthorization}
	if q.directives.OnlyIfCached || q.r.Method != http.MethodGet {
		q.pass(why)
		return true
	}
	q.bypassed()
	u := m.newKeptWriter(q.w, q.r)
	var draft Draft
	if _, others := m.drafting.LoadOrStore(key, nil); !others {
		defer m.drafting.Delete(key)
		if it == nil && m.plainRequest(q.r, q.target) && !hasAny(q.r.Header, contentFields) {
			draft = apart.Draft(q.r.Context())
			defer draft.End()
		}
	}
	sent, outer := time.Now(), maps.Clone(q.w.Header())
	shared := false
	u.before = func(status int) {
		header, now := httpcache.CanonicalHeader(u.Header()), time.Now()
		own := within(u.Header(), outer)
		j := httpcache.Judge(q.request, status, own, sent, now, m.options.Rules)
		shared = j.Shared && !isEventStream(own) && tellsAudience(status)
		switch {
		case !shared && tellsAudience(status):
			m.learnAuthorized(key, false)
		case shared && draft != nil && j.Freshness.Lifetime > j.Age && len(header["Vary"]) == 0 && headerBytes(header) <= maxHeader:
			u.keepAs(status, own, j, now)
			why = httpcache.Status{
				Fwd: httpcache.FwdURIMiss, FwdStatus: status, Stored: true, Key: m.statusKey(key),
				TTL: httpcache.Delta{Set: true, Duration: j.Freshness.Lifetime - j.Age},
			}
		}
		why.AppendTo(u.Header())
	}
	u.keep = func(res *Response, f items.Windows) { draft.Keep(res, f) }
	u.runBelowServer(q.next)
	u.finish()
	if shared {
		m.learnAuthorized(key, true) // not before it is there: who comes meanwhile would have it made again
	}
	return true
}

// hasAny reports whether h has any of the fields.
func hasAny(h http.Header, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return h[name] != nil })
}

// within returns the handler's part of a header h that was outer before the handler
// had it: what a middleware around this one has said to one client is not said to
// another, nor to that one twice.
func within(h, outer http.Header) http.Header {
	own := maps.Clone(h)
	for name, before := range outer {
		switch now := own[name]; {
		case slices.Equal(now, before):
			delete(own, name)
		case len(now) > len(before) && slices.Equal(now[:len(before)], before):
			own[name] = now[len(before):]
		}
	}
	return httpcache.CanonicalHeader(own)
}

// plainRequest reports whether nothing in a request that goes past the cache may make its
// response another than the one that the cache would ask the handler for, see detach and decide.
func (m *Middleware) plainRequest(r *http.Request, t target) bool {
	host, ok := httpcache.CanonicalHost(t.url.Host)
	return ok && host == r.Host && t.url.URL.RawQuery == r.URL.RawQuery && t.url.URL.ForceQuery == r.URL.ForceQuery && httpcache.Canonical(r) && r.Header["Host"] == nil && !m.needsVariant(t.header) &&
		!httpcache.OverridesMethod(r.Method, r.Header) && !m.options.Rules.Aliased(r.Header) && len(t.header) == len(r.Header)
}

// A watchedWriter is the real writer, with a look at the final header before it
// is sent. That is when the word about the request is put there, behind those of
// the caches that the handler has asked (RFC 9211 section 2).
type watchedWriter struct {
	http.ResponseWriter
	m      *Middleware // whose request it is
	before func(status int)
	heard  func() // called before the client can hear of it, and when the handler has returned; nil: nobody
	taken  func() // called when the handler has taken the connection over; nil: nobody is told
	cut    func() // ends the handler of a HEAD that writes more than maxUnsent; nil: the client gets a body
	done   bool
	early  bool // the client may have heard before the end
	size   int  // of what was written
}

// unheard is how much of a response net/http keeps to itself at least until the
// handler returns.
const unheard = 2 << 10

// Hijack is the real writer's. What is said from then on is not seen.
func (u *watchedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil { // else the handler has something else to say
		u.look(http.StatusOK)
		u.tell()
		if u.taken != nil {
			u.taken()
		}
	}
	return conn, rw, err
}

// past reports whether the request goes past m's cache.
func (u *watchedWriter) past(m *Middleware) bool { return u.m == m }

// Unwrap lets http.ResponseController through to the real writer.
func (u *watchedWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *watchedWriter) look(status int) {
	if u.done || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	u.done = true
	u.before(status)
	u.m.hidden.Remove(u.ResponseWriter.Header())
}

// run runs the handler. One that does not return may have said something before.
func (u *watchedWriter) run(handler func()) {
	returned := false
	defer func() {
		if returned || u.done {
			u.end()
		} else {
			u.m.hidden.Remove(u.ResponseWriter.Header()) // a middleware may answer for it
		}
	}()
	handler()
	returned = true
}

// end is the end of what is said; where that was nothing, net/http sends 200.
func (u *watchedWriter) end() {
	u.look(http.StatusOK)
	u.m.hidden.Remove(u.ResponseWriter.Header()) // trailers
	if u.heard != nil {
		u.heard()
	}
}

// tell is called before something that the client may hear of.
func (u *watchedWriter) tell() {
	if u.heard != nil && !u.early {
		u.early = true
		u.heard()
	}
}

func (u *watchedWriter) WriteHeader(status int) {
	u.look(status)
	if status >= 200 {
		u.ResponseWriter.WriteHeader(status)
		return
	}
	// The header goes out as it is, and the handler goes on with it.
	h := u.ResponseWriter.Header()
	removed := u.m.hidden.Remove(h)
	u.ResponseWriter.WriteHeader(status)
	maps.Copy(h, removed)
}

func (u *watchedWriter) Write(p []byte) (int, error) {
	u.look(http.StatusOK)
	if u.size += len(p); u.size > unheard {
		u.tell()
	}
	if u.cut != nil && u.size > maxUnsent {
		u.cut()
		return 0, http.ErrBodyNotAllowed
	}
	return u.ResponseWriter.Write(p)
}

// ReadFrom keeps the real writer's: a proxied body need not be copied through
// here.
func (u *watchedWriter) ReadFrom(r io.Reader) (int64, error) {
	if u.cut != nil {
		return io.Copy(struct{ io.Writer }{u}, r)
	}
	n, more, err := u.begin(u, r)
	if !more {
		return n, err
	}
	u.tell()
	rest, err := io.Copy(u.ResponseWriter, r)
	return n + rest, err
}

// begin copies the first bytes by w's Write, unless something has been said, and
// reports whether there may be more. A copy that fails before them has said nothing,
// and the handler may say so, as with net/http's writer.
func (u *watchedWriter) begin(w io.Writer, r io.Reader) (n int64, more bool, err error) {
	if u.done {
		return 0, true, nil
	}
	n, err = io.Copy(struct{ io.Writer }{w}, io.LimitReader(r, guessLen))
	return n, err == nil && n == guessLen, err
}

// Flush sends the header on, if the real writer can.
func (u *watchedWriter) Flush() { u.FlushError() }

// FlushError is what http.ResponseController looks for first: it tells a
// handler whether the real writer can flush.
func (u *watchedWriter) FlushError() error {
	u.look(http.StatusOK)
	u.tell()
	return http.NewResponseController(u.ResponseWriter).Flush()
}

// maxKept is the largest body of which a keptWriter keeps a copy. The copy is there for as
// long as the client reads, and is in no account of MaxHeld.
const maxKept = smallBody

// A keptWriter is a watchedWriter that keeps a copy of the response to a request, up to
// maxKept, if it is told so before the header goes out.
type keptWriter struct {
	watchedWriter
	request *http.Request
	body    bytes.Buffer

	keeping  bool
	response *Response // without its body
	header   http.Header
	age      time.Duration // when that was decided
	decided  time.Time
	keep     func(*Response, items.Windows) // nil: whoever has the writer does so at the end
}

func (m *Middleware) newKeptWriter(w http.ResponseWriter, r *http.Request) *keptWriter {
	return &keptWriter{watchedWriter: watchedWriter{ResponseWriter: w, m: m}, request: r}
}

// keepAs has the response kept that begins with the header own, and was judged so.
func (u *keptWriter) keepAs(status int, own http.Header, j httpcache.Judgement, now time.Time) {
	u.keeping, u.decided = true, now
	u.response = &Response{status: status, freshness: j.Freshness, forAll: httpcache.OpenToAll(own, u.m.options.Rules)}
	u.header, u.age = httpcache.StoredHeader(own, j.Directives, now), j.Age
}

// runBelowServer is run for a handler whose response may be kept, see withServer.
func (u *keptWriter) runBelowServer(next http.Handler) {
	r := u.request
	if r.Context().Value(http.ServerContextKey) == nil {
		// Only here: a server removes the files of its own request's form, and a copy
		// of the request has a form of its own.
		r = r.WithContext(withServer(r.Context()))
	}
	u.run(func() { next.ServeHTTP(u, r) })
}

// kept returns the response, if it is kept. Where the length is not known, a handler whose
// client has left may have returned because of that, in the middle of the body.
func (u *keptWriter) kept() (*Response, items.Windows, bool) {
	n, announced := contentLength(u.Header())
	if !u.keeping || announced && n != int64(u.body.Len()) || !announced && u.request.Context().Err() != nil {
		return nil, items.Windows{}, false
	}
	u.response.complete(u.header, spool.BodyOf(bytes.Clone(u.body.Bytes())))
	return u.response, u.m.lifeOf(u.response, u.header, u.age+time.Since(u.decided)), true
}

func (u *keptWriter) Write(p []byte) (int, error) {
	u.look(http.StatusOK)
	size := int64(u.body.Len() + len(p))
	if u.keeping = u.keeping && size <= min(maxKept, u.m.options.MaxBody); u.keeping {
		u.body.Write(p)
		if n, ok := contentLength(u.Header()); ok && n == size {
			u.finish() // before the client knows that it has all, and asks again
		}
	}
	n, err := u.watchedWriter.Write(p)
	u.keeping = u.keeping && err == nil
	return n, err
}

// finish keeps a response that is complete by its Content-Length, if there is somebody to
// keep it so early.
func (u *keptWriter) finish() {
	if u.keep == nil {
		return
	}
	if res, f, ok := u.kept(); ok {
		u.keeping = false
		u.keep(res, f)
	}
}

// Hijack is the real writer's. What is said then is not seen, and so not kept.
func (u *keptWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := u.watchedWriter.Hijack()
	u.keeping = u.keeping && err != nil
	return conn, rw, err
}

// ReadFrom copies through Write, unless nothing is kept.
func (u *keptWriter) ReadFrom(r io.Reader) (int64, error) {
	n, more, err := u.begin(u, r)
	if !more {
		return n, err
	}
	var rest int64
	if u.keeping {
		rest, err = io.Copy(struct{ io.Writer }{u}, r)
	} else {
		rest, err = u.watchedWriter.ReadFrom(r)
	}
	return n + rest, err
}

// A heldWriter keeps back responses that are not for the client: a 304 that
// answers our condition, an error in whose place there is something better.
// Anything else goes through.
type heldWriter struct {
	watchedWriter
	holds     func(status int) bool // nil: nothing is kept back
	untouched http.Header           // the client's header before the handler had it
	held      http.Header           // the handler's, of the response that is kept back
	after     http.Header           // what the handler does to its header from then on
}

func (u *heldWriter) Header() http.Header {
	if u.held != nil {
		return u.after
	}
	return u.watchedWriter.Header()
}

func newHeldWriter(m *Middleware, w http.ResponseWriter) *heldWriter {
	return &heldWriter{watchedWriter: watchedWriter{ResponseWriter: w, m: m}, untouched: maps.Clone(w.Header())}
}

func (u *heldWriter) WriteHeader(status int) {
	switch {
	case u.held != nil:
	case !u.done && u.holds != nil && u.holds(status):
		h := u.Header()
		u.held, u.after = h.Clone(), h.Clone()
		u.reset()
	default:
		u.watchedWriter.WriteHeader(status)
	}
}

// reset makes the client's header what it was before the handler had it. What has
// been kept back is answered after another reset: a handler may hold on to the map.
func (u *heldWriter) reset() {
	h := u.watchedWriter.Header()
	clear(h)
	maps.Copy(h, u.untouched)
}

func (u *heldWriter) Write(p []byte) (int, error) {
	if u.held != nil {
		return len(p), nil // a proxy takes an error for its client's end
	}
	return u.watchedWriter.Write(p)
}

func (u *heldWriter) ReadFrom(r io.Reader) (int64, error) {
	if u.held != nil {
		return io.Copy(io.Discard, r)
	}
	return u.watchedWriter.ReadFrom(r)
}

func (u *heldWriter) Flush() { u.FlushError() }

func (u *heldWriter) FlushError() error {
	if u.held != nil {
		return nil
	}
	return u.watchedWriter.FlushError()
}
