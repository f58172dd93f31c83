package storetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
)

// This file tests the notices of Notifiers.

func notifies(i Instance) bool { return i.Notifies }

// A listener collects the notices of one key.
type listener struct {
	k     kit
	key   string
	heard chan driver.Notice
	mu    sync.Mutex   // held while a notice is delivered
	calls atomic.Int64 // under way
}

// listen opens a new store, as in another process, and returns when it receives notices of key.
func (k kit) listen(s driver.Store, key string) *listener {
	k.Helper()
	other := k.Open(k.T)
	notifier, ok := other.(driver.Notifier)
	if !ok {
		k.Fatalf("%T is no Notifier, but its Instance says Notifies", other)
	}
	k.absent(other, "of a new key") // a listening process has read before
	l := &listener{k: k, key: key, heard: make(chan driver.Notice, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		notifier.Notify(ctx, func(n driver.Notice) {
			if l.calls.Add(1) != 1 {
				k.Error("Notify calls f before another call has returned")
			}
			defer l.calls.Add(-1)
			if n.Key == key {
				n.Key = "" // 10 KB of key would hide the rest of a failure's line
				l.mu.Lock()
				defer l.mu.Unlock()
				l.heard <- n
			}
		})
	}()
	k.Cleanup(func() {
		cancel()
		<-ended
	})
	// A subscription takes its time; earlier notices are lost.
	for range 200 {
		if err := s.Invalidate(k.Context(), key); err != nil {
			k.Fatalf("Invalidate: %v", err)
		}
		select {
		case <-l.heard:
			// Notices of earlier changes come before the commit's, however late.
			last := value(k.newEpoch(s), "the last that is not listened for")
			k.commit(s, last)
			for l.next("a commit").Epoch != last.Epoch {
			}
			return l
		case <-time.After(50 * time.Millisecond):
		}
	}
	k.Fatalf("nothing is heard of %.40q", key)
	return nil
}

func (l *listener) next(what string) driver.Notice {
	l.k.Helper()
	select {
	case n := <-l.heard:
		return n
	case <-time.After(10 * time.Second):
		l.k.Fatalf("nothing is heard of %s", what)
		return driver.Notice{}
	}
}

// silent invalidates, and wants no notice before the invalidation's.
func (l *listener) silent(s driver.Store, what string) {
	l.k.Helper()
	if err := s.Invalidate(l.k.Context(), l.key); err != nil {
		l.k.Fatalf("Invalidate: %v", err)
	}
	if n := l.next("an invalidation"); !n.Invalidated {
		l.k.Fatalf("%s is told: %+v", what, n)
	}
}

func testNotices(k kit) {
	for name, key := range map[string]string{
		"plain": k.key, "spaces and controls": k.key + " \r\n\x00", "Unicode": k.key + "é世", "bytes": k.key + "\xff\xfe", "10 KB": k.key + strings.Repeat("k", 10<<10),
	} {
		k.Run(name, func(t *testing.T) {
			k := kit{T: t, Instance: k.Instance, key: key}
			s := k.Open(t)
			l := k.listen(s, key)

			e := value(k.newEpoch(s), "small")
			e.Age, e.StaleWhileRevalidate = 5*time.Second, time.Minute
			k.commit(s, e)
			n := l.next("a commit")
			if n.Epoch != e.Epoch || n.Invalidated {
				t.Fatalf("heard of epoch %d (Invalidated: %t), want the commit of epoch %d", n.Epoch, n.Invalidated, e.Epoch)
			}
			if ahead := time.Until(n.Made); ahead > 0 {
				t.Fatalf("a commit's notice was Made %v from now, want the past or the zero time", ahead)
			}
			if err := same(n.Entry, e); err != nil {
				t.Fatalf("a commit's notice has %v", err)
			}
			k.commit(s, e)
			l.silent(s, "the same commit once more")
			k.refused(s, e, "of an epoch that was invalidated")
			l.silent(s, "a refused commit")

			big := value(k.newEpoch(s), strings.Repeat("v", 1<<20-2<<10))
			k.commit(s, big)
			if n = l.next("a big commit"); n.Epoch != big.Epoch {
				t.Fatalf("heard of epoch %d, want %d", n.Epoch, big.Epoch)
			}
			if n.Entry.Epoch != 0 {
				if err := same(n.Entry, big); err != nil {
					t.Fatalf("a big commit's notice has %v", err)
				}
			}
			k.invalidate(s)
			if n = l.next("an invalidation"); !n.Invalidated || n.Epoch < big.Epoch || n.Entry.Epoch != 0 {
				t.Fatalf("heard %+v of an invalidation after epoch %d", n, big.Epoch)
			}
			if next := k.newEpoch(s); next <= n.Epoch {
				t.Fatalf("epoch %d was claimed after the invalidation that set the floor to %d", next, n.Epoch)
			}
		})
	}
}

// testNoticesOfOtherWrites listens for commits by Touch and CommitAndRelease.
func testNoticesOfOtherWrites(k kit) {
	s := k.Open(k.T)
	l := k.listen(s, k.key)
	heard := func(what string, want driver.Entry) {
		k.Helper()
		n := l.next(what)
		if n.Epoch != want.Epoch || n.Invalidated {
			k.Fatalf("heard %+v of %s of epoch %d", n, what, want.Epoch)
		}
		if n.Entry.Epoch == 0 {
			return // it was not sent along
		}
		if err := same(n.Entry, want); err != nil {
			k.Fatalf("the notice of %s has %v", what, err)
		}
	}
	e := value(k.newEpoch(s), "v")
	k.commit(s, e)
	heard("a commit", e)
	if k.Touches {
		of := e.Epoch
		e.Epoch = k.newEpoch(s)
		k.touch(s.(driver.Toucher), of, e)
		heard("a Touch", e)
	}
	if k.Elects {
		elector := s.(driver.Elector)
		won := k.leads(elector, e.Epoch, e)
		e = value(won.Epoch, "w")
		k.commitAndRelease(elector, e, won.Lease)
		heard("a CommitAndRelease", e)
	}
}

// testNoticesFollow reads the key at each notice, while the call that makes the change may still run: a process that
// waits reads once, and then only after the next notice.
func testNoticesFollow(k kit) {
	s, reader := k.Open(k.T), k.Open(k.T)
	l := k.listen(s, k.key)
	do := func(what string, change func() error, done func(driver.Entry, error) bool) {
		k.Helper()
		over := make(chan error, 1)
		go func() { over <- change() }()
		l.next(what)
		e, err := reader.Get(k.Context(), k.key)
		if err := <-over; err != nil {
			k.Fatalf("%s: %v", what, err)
		}
		if !done(e, err) {
			k.Fatalf("Get at the notice of %s finds epoch %d, err = %v, from before it: a notice follows its change", what, e.Epoch, err)
		}
	}
	commit := func(what string, epoch uint64, change func(driver.Entry) error) {
		k.Helper()
		e := value(epoch, "v")
		do(what, func() error { return change(e) }, func(got driver.Entry, err error) bool { return err == nil && got.Epoch == epoch })
	}
	for range 10 {
		first := k.newEpoch(s)
		commit("a commit", first, func(e driver.Entry) error { return s.Commit(k.Context(), k.key, e) })
		if k.Touches {
			commit("a Touch", k.newEpoch(s), func(e driver.Entry) error { return s.(driver.Toucher).Touch(k.Context(), k.key, first, e) })
		}
		do("an invalidation", func() error { return s.Invalidate(k.Context(), k.key) }, func(_ driver.Entry, err error) bool { return errors.Is(err, driver.ErrNotFound) })
		if k.Elects {
			elector := s.(driver.Elector)
			won := k.leads(elector, 0, driver.Entry{})
			commit("a CommitAndRelease", won.Epoch, func(e driver.Entry) error {
				return elector.CommitAndRelease(k.Context(), k.key, e, won.Lease)
			})
		}
	}
}

// testNoticesAfterEvict invalidates a key that the engine has forgotten, while a near tier may still have its value.
func testNoticesAfterEvict(k kit) {
	s := k.Open(k.T)
	l := k.listen(s, k.key)
	e := value(k.newEpoch(s), "v")
	k.commit(s, e)
	l.next("a commit")
	k.evict()
	k.invalidate(s)
	if n := l.next("an invalidation"); !n.Invalidated || n.Epoch < e.Epoch {
		k.Fatalf("heard of epoch %d (Invalidated: %t) after an eviction, want an invalidation of epoch %d or above", n.Epoch, n.Invalidated, e.Epoch)
	}
}

// testLateNotices delivers the notices of two commits late, as after a pause: each has its own entry or none, with the
// entry's true age.
func testLateNotices(k kit) {
	s := k.Open(k.T)
	l := k.listen(s, k.key)
	const pause = 300 * time.Millisecond

	// The listener stands still during the notice. A store that calls it within the change goes on
	// afterwards.
	l.mu.Lock()
	over := time.Now().Add(pause)
	time.AfterFunc(pause, l.mu.Unlock)
	k.invalidate(s)
	type commit struct {
		entry driver.Entry
		over  time.Time
	}
	commits := map[uint64]commit{}
	var last uint64
	for _, text := range []string{"v", "w"} {
		e := value(k.newEpoch(s), text)
		e.Age, last = 5*time.Second, e.Epoch
		k.commit(s, e)
		commits[e.Epoch] = commit{e, time.Now()}
	}

	if n := l.next("an invalidation"); !n.Invalidated {
		k.Fatalf("heard %+v of an invalidation", n)
	}
	for heard := uint64(0); heard != last; {
		n := l.next("a commit")
		heard = n.Epoch
		c, known := commits[heard]
		if !known || n.Invalidated {
			k.Fatalf("heard %+v of a commit, the last of epoch %d", n, last)
		}
		if n.Made.After(c.over) {
			k.Errorf("heard of a commit that it was made %v after the call", n.Made.Sub(c.over))
		}
		if n.Entry.Epoch == 0 {
			continue // it was not sent along
		}
		if err := same(n.Entry, c.entry); err != nil {
			k.Errorf("the late notice of a commit of epoch %d has %v", heard, err)
		}
		if least := c.entry.Age + over.Sub(c.over); n.Entry.Age < least {
			k.Errorf("a commit's notice that comes late has an entry of Age %v, want %v at least", n.Entry.Age, least)
		}
	}
}

// testNoticesEnd wants Notify to return with its context, even at once.
func testNoticesEnd(k kit) {
	s := k.Open(k.T).(driver.Notifier)
	for _, after := range []time.Duration{0, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Notify(ctx, func(driver.Notice) {})
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			k.Fatalf("Notify goes on 10 s after its context's end")
		}
		cancel()
	}
}
