package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the push: one watch for each key that somebody in this process
// waits for, however many they are.

var errClosed = errors.New("the Locker is closed")

// seen is the Seen of this package's HeldErrors: at revision, the key was
// token's.
type seen struct {
	locker   *Locker
	token    string
	revision int64
}

// Watch implements [driver.Watcher]. It costs no round trip: it asks etcd
// for everything that has happened to the key since held was made, and does not
// wait for the answer. All watches end at Close.
//
// A watch survives a lost connection and a lost member: etcd's client takes it
// up again at the revision where it broke off. It closes early where that
// cannot be, because the revision is compacted or the member has lost its
// cluster.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	from, ok := held.Seen.(seen)
	if !ok || from.locker != l {
		return nil, fmt.Errorf("etcdlock: watch %.100q: the lease was not seen by this Locker", held.Key)
	}
	name := l.Prefix + adapter.Name(held.Key)
	w, err := l.watches.join(ctx, name, from)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: watch %s: %w", name, err)
	}
	return w.freed, nil
}

// watches are all the watches of a Locker.
type watches struct {
	client *clientv3.Client
	seen   *adapter.Observations[adapter.Announcement]

	// base is every stream's context; it ends at close. It has no caller's
	// values, because etcd's client opens a connection's stream for each
	// different set of metadata that it finds in a context.
	base context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup // the streams' goroutines

	mu      sync.Mutex // guards everything below, and all in streams
	streams map[string]*stream
	closed  bool
}

// A stream is etcd's watch of one key. It ends when nobody waits for it.
type stream struct {
	name string
	// state is the newest that is known of the key. The stream brings all that
	// happens after the state it began with.
	state   seen
	waiters map[*waiter]struct{}
	end     context.CancelFunc
}

// A waiter is one call of Watch that waits.
type waiter struct {
	freed chan struct{} // closed at an event that says that the lease is not from.token's
	from  seen
	// stop unties the waiter from its context, so that a long-lived context
	// does not collect the waiters that have woken.
	stop func() bool
}

func (w *watches) init(client *clientv3.Client, seen *adapter.Observations[adapter.Announcement]) {
	w.client, w.seen = client, seen
	w.streams = make(map[string]*stream)
	// A member that is cut off from its cluster would keep a watch for ever and
	// have nothing to tell it. With this it ends its watches instead.
	w.base, w.end = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

// close ends all watches and waits for their goroutines.
func (w *watches) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end()
	w.wg.Wait()
}

// join returns a waiter whose channel closes at the first event after from
// that ends from's lease; it is closed already if that is known to have
// happened. It leaves with ctx.
func (w *watches) join(ctx context.Context, name string, from seen) (*waiter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errClosed
	}
	me := &waiter{freed: make(chan struct{}), from: from}
	s := w.streams[name]
	if s != nil && s.state.revision > from.revision && s.state.token != from.token {
		// Another has the lease, or nobody, later than from was made. (With the
		// same token nothing has happened in between: a token is used once.)
		close(me.freed)
		return me, nil
	}
	if s == nil {
		s = w.open(name, from)
	}
	// Otherwise the stream is no younger than from, or it has seen the lease to
	// be the same later on. Either way it brings what ends it: events are
	// taken in under the mutex that this waiter is registered under.
	s.waiters[me] = struct{}{}
	me.stop = context.AfterFunc(ctx, func() { w.leave(s, me) })
	return me, nil
}

// open begins the stream of a key at from. The caller holds mu.
func (w *watches) open(name string, from seen) *stream {
	ctx, end := context.WithCancel(w.base)
	s := &stream{name: name, state: from, waiters: make(map[*waiter]struct{}), end: end}
	w.streams[name] = s
	w.wg.Go(func() {
		defer end()
		// The call returns when etcd has confirmed the watch, which is why it is
		// made here.
		for resp := range w.client.Watch(ctx, name, clientv3.WithRev(from.revision+1)) {
			for _, event := range resp.Events {
				w.take(s, event)
			}
		}
		w.lost(s)
	})
	return s
}

// take takes an event in and wakes those whose lease it ends.
func (w *watches) take(s *stream, event *clientv3.Event) {
	var holder adapter.Announcement // nobody
	if event.Type == mvccpb.Event_PUT {
		var ok bool
		if holder, ok = adapter.DecodeAnnouncement(event.Kv.Value); ok {
			// A renewal is observed when it happens, not when the lease it
			// renews would have ended and somebody looks: that is what makes
			// the takeover of a holder that dies after it no later than one
			// length.
			w.seen.Until(s.name, holder, holder.Length)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.state.token, s.state.revision = holder.Token, event.Kv.ModRevision
	for me := range s.waiters {
		if event.Kv.ModRevision > me.from.revision && holder.Token != me.from.token {
			w.wake(s, me)
		}
	}
	w.endIfIdle(s)
}

// lost wakes all who wait: the stream has ended, and brings nothing any more.
func (w *watches) lost(s *stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for me := range s.waiters {
		w.wake(s, me)
	}
	w.endIfIdle(s)
}

// wake ends a waiter's wait. The caller holds mu.
func (w *watches) wake(s *stream, me *waiter) {
	close(me.freed)
	me.stop()
	delete(s.waiters, me)
}

// leave forgets a waiter that nobody waits for.
func (w *watches) leave(s *stream, me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(s.waiters, me)
	w.endIfIdle(s)
}

// endIfIdle ends a stream that nobody waits for. The caller holds mu.
func (w *watches) endIfIdle(s *stream) {
	if len(s.waiters) > 0 {
		return
	}
	s.end()
	// By now there may be a younger stream under the name.
	if w.streams[s.name] == s {
		delete(w.streams, s.name)
	}
}
