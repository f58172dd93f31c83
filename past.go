package bellwether

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

	"github.com/bellwether-go/bellwether/internal/httpcache"
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
func (q *query) passUncacheable(key string, it *item[*response]) {
	q.bypassed()
	reason := it.value.reason
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
		header := within(w.Header(), w.untouched)
		j := httpcache.Judge(q.request, status, header, sent, time.Now(), q.m.rules)
		cacheable = j.Shared && !isEventStream(header) && headerBytes(header) <= maxHeader && (reason != reasonTooLarge || q.m.fits(header))
		if left := it.freshUntil - q.m.engine.clock.now(); !cacheable && left < q.m.options.UncacheableTTL/2 && !httpcache.IsServerError(status) {
			// Said once more before it is forgotten: where such responses go on, nobody
			// queues to find that out.
			q.m.replace(key, it, &response{kind: uncacheable, reason: cmp.Or(j.Reason, reason)}, Freshness{TTL: q.m.options.UncacheableTTL})
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
		q.m.replace(key, it, &response{kind: uncacheable}, Freshness{})
	}
}

// fits reports whether a response says that it is not too large to be stored.
func (m *Middleware) fits(h http.Header) bool {
	n, ok := contentLength(h)
	return ok && n <= m.options.MaxBody
}

// replace puts res in the place of old, behind the client's back: it does not wait
// for the store. Of a herd whose responses all say the same, one does so.
func (m *Middleware) replace(key string, old *item[*response], res *response, f Freshness) {
	if !m.engine.near.holds(key, old) {
		return
	}
	if _, others := m.replacing.LoadOrStore(key, nil); others {
		return
	}
	m.engine.behind(func() {
		defer m.replacing.Delete(key)
		m.engine.put(m.engine.open, key, res, f, m.engine.sweeper.position(), old)
	})
}

// passChecked asks the handler, with the stored validators in the place of the
// request's own conditions, and answers with what is stored if that still holds.
// Each request asks for itself: what the handler says to one is not said to
// another.
func (q *query) passChecked(key string, it *item[*response]) {
	q.bypassed()
	kept := it.value
	stale := kept.head()
	r := q.r.Clone(ownRoute(q.r.Context())) // the handler may have to be asked again
	if !httpcache.ValidatedFor(q.request, stale, q.m.rules) || !httpcache.SetConditions(r.Header, stale) {
		q.m.pass(q.w, q.r, q.next, httpcache.Status{Fwd: httpcache.FwdBypass, Detail: kept.reason})
		return
	}
	sent := time.Now()
	w := newHeldWriter(q.m, q.w)
	w.holds = func(status int) bool { return status == http.StatusNotModified }
	status := httpcache.Status{Fwd: httpcache.FwdStale}
	w.before = func(code int) {
		header := within(w.Header(), w.untouched)
		j := httpcache.Judge(q.request, code, header, sent, time.Now(), q.m.rules)
		switch {
		case j.Shared:
			q.m.replace(key, it, &response{kind: uncacheable}, Freshness{})
		case code == http.StatusOK && !(q.r.Method == http.MethodHead && httpcache.HeadAgrees(stale, header)):
			// Something else by now. What changes from one request to the next
			// is not worth keeping, and the next flight will see.
			q.m.replace(key, it, &response{kind: uncacheable, reason: j.Reason}, Freshness{TTL: q.m.options.UncacheableTTL})
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
	d := httpcache.ResponseDirectives(header, q.m.rules.Targets...)
	fresh := httpcache.Freshen(stale, httpcache.StoredHeader(header, d, now))
	age := httpcache.InitialAge(header, sent, now)
	if httpcache.JudgeAged(q.request, kept.status, fresh, age, now, q.m.rules).Shared {
		q.m.replace(key, it, &response{kind: uncacheable}, Freshness{})
	}
	status.FwdStatus = http.StatusNotModified
	writeStored(q.w, q.r, stored{q.m, key, kept.status, fresh, kept.guessed, kept.body, age, now}, status)
}

// passUnsafe hands a request that may change things to the handler, and drops
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
		t.url = r // what it changes is there for others
	} else if r.Method == http.MethodPost && m.options.Store == nil && !m.forbids(w.Header()) {
		m.passPost(w, r, next, t)
		return
	}
	u := &watchedWriter{ResponseWriter: w, m: m}
	var changed []string
	u.before = func(status int) {
		changed = httpcache.InvalidatedKeys(t.url, status, u.Header())
		httpcache.Status{Fwd: httpcache.FwdMethod}.AppendTo(u.Header())
	}
	u.heard = func() { m.drop(r.Context(), changed) }
	u.run(func() { next.ServeHTTP(u, r) })
}

// drop drops what is kept under the keys, for a client that may leave: what it
// has changed has changed.
func (m *Middleware) drop(ctx context.Context, keys []string) {
	for i, err := range m.engine.invalidateAll(context.WithoutCancel(ctx), keys) {
		if err != nil {
			m.engine.OnError(keys[i], err)
		}
	}
}

// passPost is passUnsafe for a POST whose response may say that it is that of
// the next GET (RFC 9110 section 9.3.3). It is kept only if no other unsafe
// request for the key came in between. Another process's cannot be seen, so
// where a fleet shares a store, no such response is kept.
func (m *Middleware) passPost(w http.ResponseWriter, r *http.Request, next http.Handler, t target) {
	witness := m.engine.watchInvalidations(t.key)
	defer m.engine.dismiss(t.key, witness)
	sent, outer := time.Now(), maps.Clone(w.Header())
	u := &keptWriter{watchedWriter: watchedWriter{ResponseWriter: w, m: m}, limit: m.options.MaxBody, account: account{of: &m.bodies}}
	defer u.account.close()
	var (
		res     *response
		kept    http.Header
		f       Freshness
		decided time.Time
		changed []string
		drops   int
	)
	u.heard = func() {
		drops++
		m.drop(r.Context(), changed)
	}
	u.before = func(status int) {
		changed = httpcache.InvalidatedKeys(t.url, status, u.Header())
		now := time.Now()
		decided = now
		header := httpcache.CanonicalHeader(u.Header())
		own := within(u.Header(), outer)
		req := m.request(r, t)
		req.NoStore = !m.options.IgnoreRequestDirectives && httpcache.ParseRequest(r.Header).NoStore
		j := httpcache.Judge(req, status, own, sent, now, m.rules)
		// As in decide; and what a GET would not be asked with, nobody is given. By the
		// whole header: a Vary or a cookie may be the handler's too, if it has set the same.
		u.keeping = httpcache.PostStorable(t.url, status, header, j) && m.plainPost(r, t) &&
			headerBytes(header) <= maxHeader && !isEventStream(header)
		if u.keeping {
			kept = httpcache.StoredHeader(own, j.Directives, now)
			res = &response{status: status, freshness: j.Freshness}
			f = freshnessOf(j.Freshness, j.Age)
		}
		httpcache.Status{Fwd: httpcache.FwdMethod}.AppendTo(u.Header())
	}
	if r.Context().Value(http.ServerContextKey) == nil {
		// Only here: a server removes the files of its own request's form, and a copy
		// of the request has a form of its own.
		r = r.WithContext(withServer(r.Context()))
	}
	u.run(func() { next.ServeHTTP(u, r) })
	n, announced := contentLength(u.Header())
	if u.keeping && (!announced || n == int64(u.body.Len())) {
		res.complete(kept, spool.BodyOf(bytes.Clone(u.body.Bytes())))
		f.Age += time.Since(decided)
		m.engine.putUnless(t.key, res, f, witness, drops)
	}
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

// plainPost reports whether nothing in the request may make its response another
// than the one that a GET would get, see detach and decide.
func (m *Middleware) plainPost(r *http.Request, t target) bool {
	host, ok := httpcache.CanonicalHost(t.url.Host)
	return ok && host == r.Host && t.url.URL.RawQuery == r.URL.RawQuery && t.url.URL.ForceQuery == r.URL.ForceQuery && httpcache.Canonical(r) && r.Header["Host"] == nil && !m.needsVariant(t.header) &&
		!httpcache.OverridesMethod(http.MethodPost, r.Header) && !m.rules.Aliased(r.Header) && len(t.header) == len(r.Header)
}

// A watchedWriter is the real writer, with a look at the final header before it
// is sent. That is when the word about the request is put there, behind those of
// the caches that the handler has asked (RFC 9211 section 2).
type watchedWriter struct {
	http.ResponseWriter
	m      *Middleware // whose request it is
	before func(status int)
	heard  func() // called before the client can hear of it, and when the handler has returned; nil: nobody
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
	return u.ResponseWriter.Write(p)
}

// ReadFrom keeps the real writer's: a proxied body need not be copied through
// here.
func (u *watchedWriter) ReadFrom(r io.Reader) (int64, error) {
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

// A keptWriter keeps a copy of the body, up to a limit.
type keptWriter struct {
	watchedWriter
	limit   int64
	account account
	keeping bool
	body    bytes.Buffer
}

func (u *keptWriter) Write(p []byte) (int, error) {
	n, err := u.watchedWriter.Write(p)
	size := int64(u.body.Len() + n)
	if u.keeping = u.keeping && err == nil && size <= u.limit && u.account.reach(size); u.keeping {
		u.body.Write(p[:n])
	}
	return n, err
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
