package bellwether

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/gate"
)

// This file is the plans of looks that flights share. Keys that expire together have flights that look at
// nearly the same time. The waiting flight whose look is due first makes the other looks too, in one
// request to a driver.BatchGetter. Looks that wait for a turn at the store become one request too, and so do the
// first looks of a batch's flights.

// maxTogether is the most keys in one request to the store, and in one load.
const maxTogether = 1000

type lookout struct {
	mu     sync.Mutex     // guards the fields below
	plans  list.List      // of *plannedLook, without the looks under way
	queued []*plannedLook // looks that wait for a turn at the store
}

type plannedLook struct {
	key    string
	budget *gate.Budget
	from   instant          // from then on another flight may make the look
	due    <-chan time.Time // when the flight itself makes the look
	reply  chan *storeReply // another flight's reply; has room for one; without a channel no other flight makes the look

	// lookout.mu guards the fields below.
	place   *list.Element // nil once the look is under way
	request *lookRequest  // the request under way, nil if none
	over    bool          // the reply was sent, or the flight has ended or looks by itself
}

// A lookRequest is a request for several looks. lookout.mu guards waiting.
type lookRequest struct {
	waiting int                // looks that are not over
	cancel  context.CancelFunc // called when waiting falls to 0: the request would hold a turn for no flight
}

func (l *lookout) add(p *plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.place = l.plans.PushBack(p)
}

func (l *lookout) remove(p *plannedLook) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.place == nil {
		return false
	}
	l.plans.Remove(p.place)
	p.place = nil
	return true
}

// takeDue removes and returns the looks that may be made now. The request has room for one more.
func (l *lookout) takeDue(now instant) (taken []*plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for place := l.plans.Front(); place != nil && len(taken) < maxTogether-1; {
		p := place.Value.(*plannedLook)
		place = place.Next()
		if p.from <= now {
			l.plans.Remove(p.place)
			p.place = nil
			taken = append(taken, p)
		}
	}
	return taken
}

// enqueue queues a look. It reports whether the caller makes a request: each request has room for maxTogether.
func (l *lookout) enqueue(p *plannedLook) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queued = append(l.queued, p)
	return len(l.queued)%maxTogether == 1
}

// send begins a request for looks, of which some may be over.
func (l *lookout) send(looks []*plannedLook, cancel context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &lookRequest{cancel: cancel}
	for _, p := range looks {
		if p.request = r; !p.over {
			r.waiting++
		}
	}
}

// end ends a look: by its reply, or because its flight waits no more.
func (l *lookout) end(p *plannedLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	if r := p.request; r != nil {
		if r.waiting--; r.waiting == 0 {
			r.cancel()
		}
	}
}

func (l *lookout) takeQueued() []*plannedLook {
	l.mu.Lock()
	n := min(len(l.queued), maxTogether)
	taken := l.queued[:n:n]
	l.queued = slices.Clone(l.queued[n:])
	l.mu.Unlock()
	return l.present(taken)
}

// present returns the looks that are not over.
func (l *lookout) present(looks []*plannedLook) []*plannedLook {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(looks), func(p *plannedLook) bool { return p.over })
}
