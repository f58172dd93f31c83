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

// This file is the Middleware with its settings.

// Options are the settings of a Middleware.
type Options struct {
	Shared       bool // the cache has a store, and a fleet may share the store
	EarlyRefresh bool // some requests for a fresh response begin its rebuild early
	Patience     bool // requests with a stale response wait for the handler's

	ErrorTTL       time.Duration
	MaxErrorTTL    time.Duration
	EngineTimeout  time.Duration
	RebuildTimeout time.Duration

	MaxBodyBytes   int64
	MaxHeldBytes   int64
	MaxStreams     int
	MaxPassThrough int
	HitForMissTTL  time.Duration

	// Key returns a request's URL and variant, or false to bypass the cache. Nil: the request's own URL.
	Key                     func(r *http.Request) (url, variant string, ok bool)
	IgnoreRequestDirectives bool
	HideStatusKey           bool
	Unsafe                  Unsafe
	InvalidateLocations     bool

	Rules  httpcache.Options
	Hidden httpcache.Hidden
}

// An Unsafe is the effect of an unsafe request on stored responses.
type Unsafe uint8

const (
	UnsafeDrops Unsafe = iota
	UnsafeStales
	UnsafeNothing
)

// A Middleware caches the responses of the handlers that it wraps. It is safe for concurrent use.
type Middleware struct {
	cache     Cache
	options   Options
	through   *semaphore.Weighted // MaxPassThrough
	streams   *semaphore.Weighted // MaxStreams
	bypasses  bypasses
	replacing sync.Map            // keys whose record a goroutine replaces, see replace
	drafting  sync.Map            // keys with a response to credentials that a request keeps, see passDrafting
	soft      *semaphore.Weighted // soft invalidations on their way into the log
	bodies    bodies              // MaxHeldBytes
}

// maxSoftWrites is the most soft invalidations on their way into the log, not yet in the sweep count.
const maxSoftWrites = 4

// New returns the HTTP face of a cache.
func New(cache Cache, o Options) *Middleware {
	m := &Middleware{
		cache: cache, options: o,
		bodies:  bodies{limit: o.MaxHeldBytes},
		through: semaphore.NewWeighted(int64(o.MaxPassThrough)),
		soft:    semaphore.NewWeighted(maxSoftWrites),
		streams: semaphore.NewWeighted(int64(o.MaxStreams)),
	}
	m.bodies.near = func(key string, body spool.Body) bool {
		it, _ := cache.Near(key)
		if it == nil || it.Kind != driver.KindValue {
			return false
		}
		kept := responseOf(it).body
		return len(kept) > 0 && &kept[0][0] == &body[0][0]
	}
	return m
}
