package redissub

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/fault"
)

// This file shares one connection among listeners.

// Shared is one connection to Redis for the listeners of several channels. The connection is there while a listener
// is. Redis publishes the messages of one script to a connection in their order. Shared is safe for concurrent use.
type Shared struct {
	// Channels are the channels of all listeners to come. If it is nil, they are the first listener's channel.
	// Set Channels before first use.
	Channels func() []string

	rdb redis.UniversalClient

	mu   sync.Mutex // guards link
	link *link      // nil without listeners; an ended one until its last listener has left
}

// Share returns a Shared without a connection.
func Share(rdb redis.UniversalClient) *Shared { return &Shared{rdb: rdb} }

// A link is the connection of a Shared, with its interruptions.
type link struct {
	stop  context.CancelFunc
	ended chan struct{}

	// mu guards the fields below. It is held while Up or Down runs, which have no user code.
	mu        sync.Mutex
	up        bool
	listeners map[*listening]struct{}
}

// A listening is a call of Listen. Its busy is held while Message runs, which may be user code that hangs: other
// listeners come and go meanwhile. busy is taken before other locks.
type listening struct {
	Listener
	channel string
	busy    sync.Mutex
}

// Listen listens to channel until ctx ends or the client is closed. Its first listener begins to connect. A listener
// that comes to a confirmed subscription is Up at once.
func (s *Shared) Listen(ctx context.Context, channel string, l Listener) {
	mine := &listening{Listener: l, channel: channel}
	in := s.join(mine)
	select {
	case <-ctx.Done():
	case <-in.ended:
	}
	if s.leave(in, mine, ctx.Err()) {
		<-in.ended
	}
}

func (s *Shared) join(l *listening) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.link
	if in != nil {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.listeners[l] = struct{}{}
		if in.up {
			l.confirmed()
		}
		return in
	}
	channels := []string{l.channel}
	if s.Channels != nil {
		channels = s.Channels()
	}
	ctx, stop := context.WithCancel(context.Background())
	in = &link{stop: stop, ended: make(chan struct{}), listeners: map[*listening]struct{}{l: {}}}
	s.link = in
	go s.keep(ctx, channels, in)
	return in
}

// keep listens until ctx ends or the client is closed. The client's user code may end the goroutine.
func (s *Shared) keep(ctx context.Context, channels []string, in *link) {
	fault.Run(func() error {
		listen(ctx, s.rdb, channels, in)
		return nil
	}, func(err error) {
		if err != nil {
			in.lost(err)
			go func() {
				select { // each message may end the goroutine again
				case <-time.After(maxPause):
				case <-ctx.Done():
				}
				s.keep(ctx, channels, in)
			}()
			return
		}
		close(in.ended)
	})
}

// leave takes a listener off, which is Down then. The last one ends the connection.
func (s *Shared) leave(in *link, l *listening, why error) (last bool) {
	l.busy.Lock()
	defer l.busy.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	in.mu.Lock()
	defer in.mu.Unlock()
	l.down(cmp.Or(why, redis.ErrClosed))
	delete(in.listeners, l)
	if len(in.listeners) > 0 {
		return false
	}
	in.stop()
	s.link = nil
	return true
}

func (in *link) confirmed() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.up = true
	for l := range in.listeners {
		l.confirmed()
	}
}

func (in *link) lost(why error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.up = false
	for l := range in.listeners {
		l.down(why)
	}
}

func (l *Listener) confirmed() {
	if l.Up != nil {
		l.Up()
	}
}

func (l *Listener) down(why error) {
	if l.Down != nil {
		l.Down(why)
	}
}

func (in *link) message(channel, payload string) {
	in.mu.Lock()
	listeners := slices.Collect(maps.Keys(in.listeners))
	in.mu.Unlock()
	for _, l := range listeners {
		if l.channel == channel && l.Message != nil {
			in.tell(l, payload)
		}
	}
}

// tell gives a listener a message, unless it has left.
func (in *link) tell(l *listening, payload string) {
	l.busy.Lock()
	defer l.busy.Unlock()
	in.mu.Lock()
	_, listens := in.listeners[l]
	in.mu.Unlock()
	if listens {
		l.Message(payload)
	}
}
