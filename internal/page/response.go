package page

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync/atomic"

	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/fault"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/items"
	"github.com/bellwether-go/bellwether/internal/spool"
)

// This file is the value under a key, a response or a record, and its encoding for a store.

type (
	// An Item is a response under a key, as this process knows it.
	Item = items.Item
	// A Want is a request's conditions on its answer.
	Want    = items.Want
	instant = durations.Instant
)

const forever = durations.Forever

// A responseKind is the meaning of a response under its key.
type responseKind uint8

const (
	// plain is a response for every client that asks for the key.
	plain responseKind = iota
	// varying is a signpost under the URL's key, see variance.
	varying
	// uncacheable records an unshareable response: the next herd does not queue (hit-for-miss).
	uncacheable
	// checked is a response that the handler must confirm for each request, by the validators.
	checked
)

// A Response is a cached value, immutable except hit and vary.built, which are safe for concurrent use.
type Response struct {
	kind      responseKind
	status    int
	failures  uint32              // the server errors in a row, if its lifetime is the pause after this server error
	fields    fields              // without the connection's fields; empty while it is live
	guessed   bool                // its Content-Type is a guess from the body
	openToAll bool                // it may answer requests with credentials
	freshness httpcache.Freshness // of plain and checked responses
	reason    string              // of uncacheable: for Cache-Status
	body      spool.Body          // complete; empty while it is live
	vary      *variance           // of varying, and of a variant while it is live

	hit atomic.Pointer[hitHeader] // made on demand, see hot.go

	// The fields below are never stored.
	forwarded
	live  *stream // the response while it is written
	spare *Item   // the stale response in place of live.failure, nil if there is none
}

// A forwarded response is one from the handler: for the Cache-Status of the callers that waited (RFC 9211).
type forwarded struct {
	fwd       httpcache.Forward
	fwdStatus int // the handler's status if the response has another
}

// A variance is a signpost: the request fields by which a URL's responses vary, which with a request lead to
// a variant's key. A response with more names brings a signpost with all: each variant is one step away.
type variance struct {
	names []string  // request field names in lower case, and the pseudonyms
	mark  string    // gives the variants new keys after an invalidation
	built *variants // the variants that this process has built of late; never stored
	id    string    // the key of the variant while it is live
}

// responseOf is the item's response, nil if it has none.
func responseOf(it *Item) *Response {
	r, _ := it.Value.(*Response)
	return r
}

// Size is the memory of a response in the near tier, with the header of its hits.
func Size(_ string, response any) int {
	r := response.(*Response)
	names, values := r.fields.count()
	n := 512 + 48*names + 16*values + len(r.fields) + int(r.body.Len()) + 24*len(r.body) + len(r.reason)
	if r.vary != nil {
		n += len(r.vary.mark)
		for _, name := range r.vary.names {
			n += 16 + len(name)
		}
	}
	return n
}

// complete sets the header and body of a kept response, with the type that net/http has guessed.
func (r *Response) complete(header http.Header, body spool.Body) {
	var guessed bool
	header, guessed = typed(header, body)
	r.body, r.guessed = body, r.guessed || guessed
	r.fields = fieldsOf(header)
}

// IsAnswer reports whether a value is a response, and no record. Nil is none.
func IsAnswer(value any) bool {
	r, _ := value.(*Response)
	return r != nil && r.kind == plain
}

func (r *Response) tags(tagFields []string) []string {
	if r.live != nil {
		return httpcache.Tags(tagFields, r.live.header.Values)
	}
	return httpcache.Tags(tagFields, r.fields.values)
}

// A stored response is
//
//	version(1) | kind(1) | flags(1) | uvarints status, failures | strings mark, reason |
//	uvarint n, n strings names | fields | body
//
// Strings are as in fields. No fields are a zero. The Entry around it has lifetime, windows and age.
const (
	responseVersion = 5

	flagNoStale   = 1 << 0
	flagGuessed   = 1 << 2 // 1 << 1 is free
	flagOpenToAll = 1 << 3
)

var errResponse = errors.New("bellwether: stored bytes are not a response")

// Marshal encodes a complete response. The record of a body over MaxBodyBytes is for its process alone: each other
// process needs a load for its own clients, who all read its stream, and not a load for each client.
func Marshal(response any) ([]byte, error) {
	r := response.(*Response)
	if r.kind == uncacheable && r.reason == reasonTooLarge {
		return nil, fault.ErrLocal
	}
	var flags byte
	if r.freshness.NoStale {
		flags |= flagNoStale
	}
	if r.guessed {
		flags |= flagGuessed
	}
	if r.openToAll {
		flags |= flagOpenToAll
	}
	var vary variance
	if r.vary != nil {
		vary = *r.vary
	}
	b := make([]byte, 0, 64+len(vary.mark)+len(r.reason)+len(r.fields)+int(r.body.Len()))
	b = append(b, responseVersion, byte(r.kind), flags)
	b = binary.AppendUvarint(b, uint64(r.status))
	b = binary.AppendUvarint(b, uint64(r.failures))
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

// Unmarshal decodes the bytes of Marshal. The body shares memory with data.
func Unmarshal(data []byte) (any, error) {
	if len(data) < 3 || data[0] != responseVersion || data[1] > byte(checked) {
		return nil, fmt.Errorf("%w: version and kind %.2x", errResponse, data)
	}
	kind, flags, d := data[1], data[2], decoder[[]byte]{rest: data[3:]}
	r := &Response{kind: responseKind(kind), status: int(d.uvarint(999)), failures: uint32(d.uvarint(math.MaxUint32))}
	r.freshness.NoStale = flags&flagNoStale != 0
	r.guessed, r.openToAll = flags&flagGuessed != 0, flags&flagOpenToAll != 0
	var names []string
	mark := d.string()
	r.reason = d.string()
	for range d.number() {
		names = append(names, d.string())
	}
	r.fields = readFields(&d)
	if d.bad {
		return nil, fmt.Errorf("%w: cut short", errResponse)
	}
	if record := r.kind == varying || r.kind == uncacheable; !record && r.status < 200 || record && r.fields != "" {
		return nil, fmt.Errorf("%w: kind %d with status %d and %d bytes of header", errResponse, r.kind, r.status, len(r.fields))
	}
	if r.kind == varying {
		r.vary = &variance{names: names, mark: mark, built: new(variants)}
	}
	r.body = spool.BodyOf(d.rest)
	return r, nil
}
