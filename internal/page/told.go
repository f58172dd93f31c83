package page

import "github.com/bellwether-go/bellwether/observe"

// A request may go through several calls: for what it varies by, and for the
// variant. It is told of once. Of the ways, the one that took most is the
// request's.

// add adds one of its calls to the request's.
func (q *query) add(s observe.Serve) {
	if q.told != nil {
		q.told.Way, q.told.Err = max(q.told.Way, s.Way), s.Err
		q.told.Waited += s.Waited
	}
}

// bypassed is add for a request that is answered by the handler, for itself.
func (q *query) bypassed() { q.add(observe.Serve{Way: observe.WayBypass}) }

// tell tells of the request's end.
func (q *query) tell() { q.m.cache.Tell(q.r.Context(), *q.told) }
