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

// This file is the push: one watch in ZooKeeper for each node whose end anybody
// in this process waits for, on which all of them hang.

// seen is the Seen of this package's HeldErrors.
type seen struct {
	locker *Locker
	holder string // the path of the holder's node, empty if the lease was free again
}

// Watch implements [driver.Watcher]. The first for a lease costs one
// request, the others none. While no server answers it returns an error. The
// watch ends with the lease, or with the session.
func (l *Locker) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	seen, ok := held.Seen.(seen)
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
		return nil, wrap("watch", seen.holder, err)
	}
	freed, err := l.watches.await(ctx, conn, seen.holder)
	return freed, wrap("watch", seen.holder, err)
}

// A watch is one that ZooKeeper has, or is being asked for.
type watch struct {
	set   chan struct{} // closed when ZooKeeper has it, or err says why not
	err   error         // read it after set is closed
	freed chan struct{} // closed when the node is gone
}

// watches are a Locker's watches by the paths of their nodes. The zero value is
// ready for use and safe for concurrent use.
//
// A node that is watched is a holder's or a place in a queue, whose name has a
// token: once gone it never comes again, so a watch that is set too late finds
// nothing, and no version has to be compared.
type watches struct {
	mu   sync.Mutex // guards path
	path map[string]*watch
}

// await returns a channel that is closed at the node's end, when ZooKeeper
// watches for that.
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
	// It is there before ZooKeeper is asked: the end may be told before the
	// reply to that is handled here.
	w = &watch{set: make(chan struct{}), freed: make(chan struct{})}
	if ws.path == nil {
		ws.path = make(map[string]*watch)
	}
	ws.path[path] = w
	// Not bound to the first caller's context: others hang on it.
	go ws.ask(conn, path, w)
	return w
}

// ask has ZooKeeper watch a node. It asks for its children, of which it has
// none: this is the watch that only the node's end triggers, not the renewals.
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

// any reports whether ZooKeeper may have a watch of the Locker's.
func (ws *watches) any() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return len(ws.path) > 0
}

// end wakes those who wait for a node's end.
func (ws *watches) end(path string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.path[path]; w != nil {
		delete(ws.path, path)
		close(w.freed)
	}
}

// endAll wakes all: the session has ended, and with it what would tell them.
func (ws *watches) endAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range ws.path {
		close(w.freed)
	}
	clear(ws.path)
}
