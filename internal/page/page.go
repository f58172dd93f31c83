package page

import (
	"net/http"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/httpcache"
	"github.com/bellwether-go/bellwether/internal/spool"
	"golang.org/x/sync/semaphore"
)

// Options are those of a Middleware.
type Options struct {
	Shared       bool // the cache has a store, which a fleet may share
	EarlyRefresh bool // what is fresh is rebuilt early now and then

	TTL            time.Duration
	ErrorTTL       time.Duration
	EngineTimeout  time.Duration
	RebuildTimeout time.Duration

	MaxBody        int64
	MaxHeld        int64
	MaxStreams     int
	PassThrough    int
	UncacheableTTL time.Duration

	// Key returns the URL that a request is for, and the variant there, or false. Nil: the
	// request's own.
	Key                     func(r *http.Request) (url, variant string, ok bool)
	IgnoreRequestDirectives bool
	HideStatusKey           bool
	Unsafe                  Unsafe
	InvalidateLocations     bool

	Rules       httpcache.Options
	Credentials []string // the names of request fields
	Hidden      []string // the names of response fields
}

// An Unsafe is what an unsafe request does to stored responses.
type Unsafe uint8

const (
	UnsafeDrops   Unsafe = iota // they are dropped
	UnsafeStales                // they are stale
	UnsafeNothing               // they stay
)

// A Middleware caches the responses of the handlers that it wraps. It is safe for concurrent use.
type Middleware struct {
	cache     Cache
	options   Options
	hidden    httpcache.Hidden
	through   *semaphore.Weighted // PassThrough
	streams   *semaphore.Weighted // MaxStreams
	bypasses  bypasses
	replacing sync.Map            // the keys whose record is being replaced, see replace
	drafting  sync.Map            // the keys of which a response to credentials is being kept, see passCredentials
	soft      *semaphore.Weighted // the soft invalidations that are being written into the log
	bodies    bodies              // MaxHeld
}

// maxSoftWrites is how many soft invalidations are on their way into the log at a time. The
// count of the last minute does not know them yet.
const maxSoftWrites = 4

// New returns the HTTP face of a cache.
func New(cache Cache, o Options) *Middleware {
	m := &Middleware{
		cache: cache, options: o, hidden: httpcache.NewHidden(o.Hidden),
		bodies:  bodies{limit: o.MaxHeld},
		through: semaphore.NewWeighted(int64(o.PassThrough)),
		soft:    semaphore.NewWeighted(maxSoftWrites),
		streams: semaphore.NewWeighted(int64(o.MaxStreams)),
	}
	m.bodies.near = func(key string, body spool.Body) bool {
		it, _ := cache.Near(key)
		if it == nil || it.Kind != driver.KindValue || !cache.Fits(it) {
			return false
		}
		return len(it.Value.body) > 0 && &it.Value.body[0][0] == &body[0][0]
	}
	return m
}
