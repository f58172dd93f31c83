package redissub

import (
	"cmp"
	"context"
	"sync"

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
	link *link      // nil without listeners
}

// Share returns a Shared without a connection.
func Share(rdb redis.UniversalClient) *Shared { return &Shared{rdb: rdb} }

// A link is the connection of a Shared, with its interruptions.
type link struct {
	stop  context.CancelFunc
	ended chan struct{}

	// mu guards the fields below, and is held while a listener's function runs: their functions do not overlap.
	mu        sync.Mutex
	up        bool
	listeners map[*Listener]string // the channels
}

// Listen listens to channel until ctx ends or the client is closed. Its first listener begins to connect. A listener
// that comes to a confirmed subscription is Up at once.
func (s *Shared) Listen(ctx context.Context, channel string, l Listener) {
	in := s.join(channel, &l)
	select {
	case <-ctx.Done():
	case <-in.ended:
	}
	if s.leave(in, &l, ctx.Err()) {
		<-in.ended
	}
}

func (s *Shared) join(channel string, l *Listener) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.link
	if in != nil {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.listeners[l] = channel
		if in.up {
			call(l.Up)
		}
		return in
	}
	channels := []string{channel}
	if s.Channels != nil {
		channels = s.Channels()
	}
	ctx, stop := context.WithCancel(context.Background())
	in = &link{stop: stop, ended: make(chan struct{}), listeners: map[*Listener]string{l: channel}}
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
			go s.keep(ctx, channels, in)
			return
		}
		s.forget(in)
		close(in.ended)
	})
}

// leave takes a listener off, which is Down then. The last one ends the connection.
func (s *Shared) leave(in *link, l *Listener, why error) (last bool) {
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
	if s.link == in {
		s.link = nil
	}
	return true
}

func (s *Shared) forget(in *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == in {
		s.link = nil
	}
}

func call(f func()) {
	if f != nil {
		f()
	}
}

func (in *link) connecting() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for l := range in.listeners {
		call(l.Connect)
	}
}

func (in *link) confirmed() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.up = true
	for l := range in.listeners {
		call(l.Up)
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

func (l *Listener) down(why error) {
	if l.Down != nil {
		l.Down(why)
	}
}

func (in *link) message(channel, payload string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for l, of := range in.listeners {
		if of == channel && l.Message != nil {
			l.Message(payload)
		}
	}
}
