package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/adapter"
)

// This file is the push: one watch for each watched node, shared by all waiters of this process.

// seenLease is the Seen of this package's HeldErrors.
type seenLease struct {
	locker *Locker
	holder string // the path of the holder's node, empty if the lease was free again
}

// Watch implements [driver.Watcher]. The first watch of a lease costs 1 request, further watches none.
// While no server answers Watch returns an error. The watch ends with the lease or the session.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seen, ok := held.Seen.(seenLease)
	if !ok || seen.locker != l {
		return nil, fmt.Errorf("zklock: watch %.100q: the lease was not seen by this Locker", held.Key)
	}
	if seen.holder == "" {
		freed := make(chan struct{})
		close(freed)
		return freed, nil
	}
	conn, err := l.session.now()
	if err != nil {
		return nil, l.wrap("watch", seen.holder, err)
	}
	freed, err := l.watches.await(ctx, conn, seen.holder)
	return freed, l.wrap("watch", seen.holder, err)
}

// A watch is a watch in ZooKeeper, or a request for it.
type watch struct {
	set   chan struct{} // closed when ZooKeeper has it, or err is set
	err   error         // read it after set is closed
	freed chan struct{} // closed when the node is gone
}

// watches are a Locker's watches by node path. The zero value is ready for use and safe for concurrent use. A
// watched node has a token in its name and never comes again, so a watch set too late finds no node.
type watches struct {
	mu   sync.Mutex // guards path
	path map[string]*watch
}

// await returns a channel that is closed at the node's end, once ZooKeeper has the watch.
func (ws *watches) await(ctx context.Context, conn *zk.Conn, path string) (<-chan struct{}, error) {
	w := ws.join(conn, path)
	select {
	case <-w.set:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if w.err != nil {
		return nil, w.err
	}
	return w.freed, nil
}

// join returns the watch of a node, set by now or soon.
func (ws *watches) join(conn *zk.Conn, path string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.path[path]
	if w != nil {
		return w
	}
	// Registered before the request: the event of the node's end may be handled before the reply.
	w = &watch{set: make(chan struct{}), freed: make(chan struct{})}
	if ws.path == nil {
		ws.path = make(map[string]*watch)
	}
	ws.path[path] = w
	// Not bound to the first caller's context: other callers share it.
	go ws.ask(conn, path, w)
	return w
}

// ask has ZooKeeper watch a node's children: there are none, and no renewal triggers this watch.
func (ws *watches) ask(conn *zk.Conn, path string, w *watch) {
	err := adapter.Do(context.Background(), func() error { // for its recover: nothing bounds it
		_, _, _, err := conn.ChildrenW(path)
		return err
	})
	switch {
	case errors.Is(err, zk.ErrNoNode):
		ws.end(path)
	case err != nil:
		ws.mu.Lock()
		if ws.path[path] == w {
			delete(ws.path, path)
		}
		ws.mu.Unlock()
		w.err = err
	}
	close(w.set)
}

// any reports whether ZooKeeper may have a watch of the Locker.
func (ws *watches) any() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.path) > 0
}

func (ws *watches) end(path string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.path[path]; w != nil {
		delete(ws.path, path)
		close(w.freed)
	}
}

// endAll wakes all waiters: the session has ended, with all its watches.
func (ws *watches) endAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.path {
		close(w.freed)
	}
	clear(ws.path)
}
