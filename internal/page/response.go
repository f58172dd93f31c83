package page

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is what the HTTP face keeps under a key: a response, or what is
// known about the responses there, and the bytes it has in a store.

type (
	// An Item is a response under a key, as this process knows it.
	Item = items.Item[*Response]
	// A Want is what a request asks of its answer.
	Want    = items.Want[*Response]
	instant = durations.Instant
)

// forever is the instant that never comes.
const forever = durations.Forever

// A responseKind says what a response stands for.
type responseKind uint8

const (
	// plain is a response for everybody who asks for the key.
	plain responseKind = iota
	// varying says that responses to this URL differ by request fields: the
	// variant of a request is kept under a key made of the URL's and of the
	// request's fields of those names. It is a signpost, and is kept under the
	// URL's key.
	varying
	// uncacheable says that the last response to this key was not for sharing,
	// so that the next herd need not queue to find that out (hit-for-miss).
	uncacheable
	// checked is a response for nobody unless the handler says, to a condition
	// in his own request, that it still holds.
	checked
	// open says that requests with Authorization may share what the key has. It
	// is known to this process alone, and never stored.
	open
)

// A Response is one value of the HTTP face's engine. It is immutable, but for hit
// and the variants of its variance, which are safe for concurrent use.
type Response struct {
	kind      responseKind
	status    int
	fields    fields              // without connection-bound ones; none while it is live
	guessed   bool                // its Content-Type is a guess from the body
	forAll    bool                // it may answer requests with credentials
	freshness httpcache.Freshness // of plain and checked responses
	reason    string              // of uncacheable: for Cache-Status
	body      spool.Body          // complete; empty while it is live
	vary      *variance           // of varying

	hit atomic.Pointer[hitHeader] // made when it is needed, see hot.go

	// What follows is never stored.
	instead   *Item             // what a server's error has taken the place of, for requests that would rather have that
	fwd       httpcache.Forward // the way to the handler, for those who waited for the response
	fwdStatus int               // on that way
	live      *stream           // the response while it is being written
}

// A variance is what the responses to a URL vary by. A response that depends on request
// fields leaves a signpost under the URL's key: the names of the fields. The names and a
// request lead to the key of a variant. A response that names more fields replaces the
// signpost by one with all names. So every variant is one step away, however many fields
// a handler names one by one.
type variance struct {
	names   []string  // request field names in lower case, and what stands for others
	mark    string    // makes the variants' keys new after an invalidation
	built   *variants // which of its variants this process has built; never stored
	variant *Response // the response that told the names, while that is live
	id      string    // variant's key
}

// content is the response itself, also where what it varies by was found first.
func (r *Response) content() *Response {
	if r.vary != nil && r.vary.variant != nil {
		return r.vary.variant
	}
	return r
}

// Size is what the response takes in the near tier, with the header of its hits.
func (r *Response) Size() int {
	n := 512 + 64*r.fields.count() + len(r.fields) + int(r.body.Len()) + 24*len(r.body) + len(r.reason)
	if r.vary != nil {
		n += len(r.vary.mark)
		for _, name := range r.vary.names {
			n += 16 + len(name)
		}
	}
	if r.instead != nil {
		n += r.instead.Value.Size()
	}
	return n
}

// complete gives a response that is kept its header and its whole body. One that
// has no type gets the one that net/http has given it for who has read it as it
// was made.
func (r *Response) complete(header http.Header, body spool.Body) {
	var guessed bool
	header, guessed = typed(header, body)
	r.body, r.guessed = body, r.guessed || guessed
	r.fields = fieldsOf(header)
}

// IsAnswer tells a response from a record on the way to one.
func (r *Response) IsAnswer() bool { return r != nil && r.kind == plain }

// IsFailure reports whether the response says that its handler has failed.
func (r *Response) IsFailure() bool { return r != nil && httpcache.IsServerError(r.status) }

// head returns the response's header, which is not to be changed.
func (r *Response) head() http.Header {
	if r.live != nil {
		return r.live.header
	}
	return r.fields.header()
}

// tags returns the response's tags in these fields.
func (r *Response) tags(fields []string) []string {
	if r.live != nil {
		return httpcache.Tags(fields, r.live.header.Values)
	}
	return httpcache.Tags(fields, r.fields.values)
}

// A stored response is
//
//	version(1) | kind(1) | flags(1) | uvarint status | strings mark, reason |
//	uvarint n, n strings names | fields | body
//
// with strings as uvarint length and bytes, and no fields as a zero. Lifetime, windows and age
// travel in the Entry around it.
const (
	responseVersion = 4

	flagNoStale = 1 << 0
	flagNoCache = 1 << 1
	flagGuessed = 1 << 2
	flagForAll  = 1 << 3
)

var errResponse = errors.New("bellwether: stored bytes are not a response")

// Marshal encodes r, which is complete.
func Marshal(r *Response) ([]byte, error) {
	var flags byte
	if r.freshness.NoStale {
		flags |= flagNoStale
	}
	if r.freshness.NoCache {
		flags |= flagNoCache
	}
	if r.guessed {
		flags |= flagGuessed
	}
	if r.forAll {
		flags |= flagForAll
	}
	var vary variance
	if r.vary != nil {
		vary = *r.vary
	}
	b := make([]byte, 0, 64+len(vary.mark)+len(r.reason)+len(r.fields)+int(r.body.Len()))
	b = append(b, responseVersion, byte(r.kind), flags)
	b = binary.AppendUvarint(b, uint64(r.status))
	b = appendString(b, vary.mark)
	b = appendString(b, r.reason)
	b = binary.AppendUvarint(b, uint64(len(vary.names)))
	for _, name := range vary.names {
		b = appendString(b, name)
	}
	if len(r.fields) == 0 {
		b = append(b, 0)
	}
	b = append(b, r.fields...)
	return r.body.Append(b), nil
}

// Unmarshal decodes what Marshal wrote. The body shares memory with
// data.
func Unmarshal(data []byte) (*Response, error) {
	d := decoder[[]byte]{rest: data}
	version, kind, flags := d.byte(), d.byte(), d.byte()
	if version != responseVersion || kind > byte(checked) {
		return nil, fmt.Errorf("%w: version %d, kind %d", errResponse, version, kind)
	}
	r := &Response{kind: responseKind(kind), status: int(d.uvarint(999))}
	r.freshness.NoStale, r.freshness.NoCache = flags&flagNoStale != 0, flags&flagNoCache != 0
	r.guessed, r.forAll = flags&flagGuessed != 0, flags&flagForAll != 0
	var names []string
	mark, reason := d.string(), d.string()
	for range d.number() {
		names = append(names, d.string())
	}
	r.reason = reason
	r.fields = readFields(&d)
	if d.bad {
		return nil, fmt.Errorf("%w: cut short", errResponse)
	}
	if (r.kind == plain || r.kind == checked) && (r.status < 200 || r.status > 999) {
		return nil, fmt.Errorf("%w: status %d", errResponse, r.status)
	}
	if r.kind == varying {
		r.vary = &variance{names: names, mark: mark, built: new(variants)}
	}
	r.body = spool.BodyOf(d.rest)
	return r, nil
}
