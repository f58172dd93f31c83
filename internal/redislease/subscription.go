package redislease

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/redissub"
)

// This file is the subscription to releases and the watches on it.

// buckets is the number of release counters. Keys with a common counter may wake early, for a look.
const buckets = 1024

var (
	errNoPush = errors.New("no subscription at present")
	errClosed = errors.New("the locker is closed")
	errRing   = fmt.Errorf("a Ring cannot carry the channel of all shards: %w", errors.ErrUnsupported)
)

// freedAlready is the watch of a lease that ended before the watch began.
var freedAlready = &watch{freed: closedChannel()}

func closedChannel() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Heard is the state of the subscription at a moment.
type Heard struct {
	connection uint64 // 0: no subscription
	releases   uint64 // of the key's bucket
}

// A subscription hears releases, reconnects by itself and wakes watches. It is safe for concurrent use.
type subscription struct {
	pushes *redissub.Shared

	seed     maphash.Seed
	releases [buckets]atomic.Uint64 // heard so far, by the hash of the name

	// connection numbers the connections with a confirmed subscription; 0: none now. Written under mu.
	connection atomic.Uint64

	begun atomic.Bool // read by start without the mutex

	tried  chan struct{} // closed by settle: the first attempt to subscribe has ended, in success or failure
	settle func()

	mu      sync.Mutex // guards everything below
	last    uint64     // the number of the last confirmed connection
	watches map[string]map[*watch]struct{}
	err     error // the reason for no subscription, while connection is 0 and tried is closed
	stop    context.CancelFunc
	ended   chan struct{} // closed when the goroutine has ended; nil before start
	shut    bool          // close was called
}

// A watch is one waiting call of Watch.
type watch struct {
	freed chan struct{}
	// stop unties the watch from its context, so a long-lived context does not collect woken watches.
	stop func() bool
}

func newSubscription(pushes *redissub.Shared) *subscription {
	tried := make(chan struct{})
	return &subscription{
		pushes:  pushes,
		seed:    maphash.MakeSeed(),
		tried:   tried,
		settle:  sync.OnceFunc(func() { close(tried) }),
		watches: make(map[string]map[*watch]struct{}),
	}
}

// start opens the subscription in the background, once.
func (s *subscription) start(rdb redis.UniversalClient, channel string) {
	if s.begun.Load() || !s.begun.CompareAndSwap(false, true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut || redissub.IsRing(rdb) {
		return
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		s.pushes.Listen(ctx, channel, redissub.Listener{Up: s.up, Down: s.down, Message: s.released})
	}()
}

func (s *subscription) close() {
	s.mu.Lock()
	s.shut = true
	s.err = errClosed
	s.settle()
	stop, ended := s.stop, s.ended
	s.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

func (s *subscription) up() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.connection.Store(s.last)
	s.settle()
}

// down wakes every watch: messages from now on are lost.
func (s *subscription) down(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connection.Store(0)
	if !s.shut {
		s.err = fmt.Errorf("%w: %v", errNoPush, why) // not wrapped: a context's error would look like the caller's
	}
	s.settle()
	for name := range s.watches {
		s.wake(name)
	}
}

// released counts the releases of a message, and wakes the watches of their keys.
func (s *subscription) released(names string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range strings.SplitSeq(names, " ") {
		s.bucket(name).Add(1)
		s.wake(name)
	}
}

// wake ends the watches of a key. The caller holds mu.
func (s *subscription) wake(name string) {
	for w := range s.watches[name] {
		close(w.freed)
		w.stop()
	}
	delete(s.watches, name)
}

func (s *subscription) bucket(name string) *atomic.Uint64 {
	return &s.releases[maphash.String(s.seed, name)%buckets]
}

// heard returns the state of the subscription for name. It takes no lock.
func (s *subscription) heard(name string) Heard {
	// The connection first: if a new one comes between the reads, the older number wakes watches early.
	connection := s.connection.Load()
	return Heard{connection, s.bucket(name).Load()}
}

// await waits for the end of the first attempt to subscribe, or of ctx. The error is why there is no subscription.
func (s *subscription) await(ctx context.Context) error {
	select {
	case <-s.tried:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connection.Load() == 0 {
		return s.err
	}
	return nil
}

// watch returns a watch whose channel closes at the next release of the key after since, and at the
// loss of the connection. It is closed already if either has happened. The watch ends with ctx.
func (s *subscription) watch(ctx context.Context, name string, since Heard) (*watch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Releases are counted under this mutex too, so none falls between this look and the registration.
	switch now := s.heard(name); {
	case now.connection == 0:
		return nil, s.err
	case now != since:
		return freedAlready, nil
	}
	w := &watch{freed: make(chan struct{})}
	if s.watches[name] == nil {
		s.watches[name] = make(map[*watch]struct{})
	}
	s.watches[name][w] = struct{}{}
	w.stop = context.AfterFunc(ctx, func() { s.leave(name, w) })
	return w, nil
}

func (s *subscription) leave(name string, w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, waiting := s.watches[name][w]; !waiting {
		return // woken before, or never begun
	}
	w.stop()
	delete(s.watches[name], w)
	if len(s.watches[name]) == 0 {
		delete(s.watches, name)
	}
}
