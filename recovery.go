package bellwether

import "sync"

// This file is what an origin's recovery does for the keys whose loads failed: a pause
// that has grown in an outage is of no more use when the outage is over.

// An originRecord tells how long all loads of a cache have failed.
type originRecord struct {
	mu      sync.Mutex // guards all
	failing bool       // no load has succeeded since one failed
	since   instant    // when the first of those was
}

// note takes in how a load has ended. It reports whether the load has succeeded
// after all had failed for that long.
func (o *originRecord) note(succeeded bool, now, long instant) (recovered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	recovered = succeeded && o.failing && now-o.since >= long
	if !succeeded && !o.failing {
		o.since = now
	}
	o.failing = !succeeded
	return recovered
}

// An earlyTry says whether a failed key is to be tried again when its origin
// recovers. It is for what failed in this process: another process's failure may have
// said itself when to try again, and its text alone has come here.
type earlyTry uint8

const (
	noEarlyTry earlyTry = iota
	earlyTryDue
	earlyTryHad // since the key's last success: what fails all the same keeps its pauses
)

// earlyTryAfter is a failure's, of a key of which that was known. pauses tells whether
// the pause after the failure is ours to choose.
func earlyTryAfter[V any](known *item[V], pauses bool) earlyTry {
	switch {
	case known != nil && known.failures > 0 && known.early == earlyTryHad:
		return earlyTryHad
	case pauses:
		return earlyTryDue
	}
	return noEarlyTry
}

// noteLoad takes in how a load has ended. When the origin has recovered, the pauses of
// the failures that the near tier has are over. A process that finds a later failure
// in the store waits as that says, so the fleet tries each key once.
func (e *engine[V]) noteLoad(succeeded bool) {
	now := e.clock.now()
	if e.ErrorTTL <= 0 || !e.origin.note(succeeded, now, e.ErrorTTL) {
		return
	}
	e.running.Go(func() {
		e.near.Revise(func(_ string, it *item[V]) *item[V] {
			if it.early != earlyTryDue || !it.backingOff(now) {
				return it
			}
			due := *it
			due.retryAt, due.early = now, earlyTryHad
			return &due
		})
	})
}
