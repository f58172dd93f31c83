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

// This file is the push: one watch for each watched key, shared by all waiters of this process.

var errClosed = errors.New("the Locker is closed")

// seenLease is the Seen of this package's HeldErrors: token had the key at revision.
type seenLease struct {
	locker   *Locker
	token    string
	revision int64
}

// Watch implements [driver.Watcher]. It costs no round trip: it requests all events of the key since held was
// made, and does not wait for the answer. All watches end at Close. A watch survives a lost connection and a
// lost member. If the revision is compacted or the member has lost its cluster, the channel closes early.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	from, ok := held.Seen.(seenLease)
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

type watches struct {
	client *clientv3.Client
	seen   *adapter.Observations[adapter.Announcement]

	// base is the context of all streams, without a caller's values: etcd's client opens a stream on the
	// connection for each different set of metadata in a context.
	base context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup // the streams' goroutines

	mu      sync.Mutex // guards everything below, and all in streams
	streams map[string]*stream
	closed  bool
}

// A stream is etcd's watch of one key. It ends with its last waiter.
type stream struct {
	name string
	// state is the newest known state of the key. The stream delivers all events after its first state.
	state   seenLease
	waiters map[*waiter]struct{}
	end     context.CancelFunc
}

// A waiter is one waiting call of Watch.
type waiter struct {
	freed chan struct{} // closed at an event after which from.token does not have the lease
	from  seenLease
	// stop unties the waiter from its context, so a long-lived context does not collect woken waiters.
	stop func() bool
}

func (w *watches) init(client *clientv3.Client, seen *adapter.Observations[adapter.Announcement]) {
	w.client, w.seen = client, seen
	w.streams = make(map[string]*stream)
	// Without this option a member cut off from its cluster would keep its watches for ever, without events.
	w.base, w.end = context.WithCancel(clientv3.WithRequireLeader(context.Background()))
}

func (w *watches) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end()
	w.wg.Wait()
}

// join returns a waiter whose channel closes at the first event after from that ends from's lease.
// The waiter leaves with ctx.
func (w *watches) join(ctx context.Context, name string, from seenLease) (*waiter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errClosed
	}
	me := &waiter{freed: make(chan struct{}), from: from}
	s := w.streams[name]
	if s == nil || s.state.revision > from.revision && s.state.token != from.token {
		// The present stream may have begun after from. Or etcd has lost its data, and the present stream
		// awaits a revision far ahead. Its waiters stay with it.
		s = w.open(name, from)
	}
	// Otherwise the stream began no later than from, or has seen the same lease later (a token is used once).
	// It delivers the event that ends the lease: events are handled under this mutex.
	s.waiters[me] = struct{}{}
	me.stop = context.AfterFunc(ctx, func() { w.leave(s, me) })
	return me, nil
}

// open begins the stream of a key at from. The caller holds mu.
func (w *watches) open(name string, from seenLease) *stream {
	ctx, end := context.WithCancel(w.base)
	s := &stream{name: name, state: from, waiters: make(map[*waiter]struct{}), end: end}
	w.streams[name] = s
	w.wg.Go(func() {
		defer end()
		// The call waits for etcd to confirm the watch, so it is made here.
		for resp := range w.client.Watch(ctx, name, clientv3.WithRev(from.revision+1)) {
			for _, event := range resp.Events {
				w.take(s, event)
			}
		}
		w.lost(s)
	})
	return s
}

// take handles an event and wakes the waiters whose lease it ends.
func (w *watches) take(s *stream, event *clientv3.Event) {
	var holder adapter.Announcement // no holder
	if event.Type == mvccpb.Event_PUT {
		var ok bool
		if holder, ok = adapter.DecodeAnnouncement(event.Kv.Value); ok {
			// Observed now, not at the next look: if the holder dies, its lease is taken one length later.
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

// lost wakes all waiters: the stream has ended.
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

func (w *watches) leave(s *stream, me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(s.waiters, me)
	w.endIfIdle(s)
}

// endIfIdle ends a stream without waiters. The caller holds mu.
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
