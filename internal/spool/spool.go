// Package spool holds a body that grows while many read it. One rebuild writes
// a response into a [Spool]; every caller that waits for the response, the one
// whose request began it included, copies it out through a [Reader] of its
// own. So the first byte reaches all of them as soon as it is written, and a
// reader that is slow or leaves is no matter to the others.
package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

var (
	// ErrNoReaders is what Write returns when the body has passed the limit,
	// so that it will not be stored, and nobody is left to read it either.
	ErrNoReaders = errors.New("bellwether: no client reads a body too large to store")

	// ErrClosed is what Write returns once the body has ended, CopyTo once its
	// reader is closed, and both when the body was broken off without a reason.
	ErrClosed = errors.New("bellwether: spool is closed")

	// ErrTooSlow is what CopyTo returns once its reader has lost its place in
	// a body that has passed the limit, see [Spool].
	ErrTooSlow = errors.New("bellwether: reader is too slow for the others")
)

// A reader loses its place in a body over the limit when it has had the others
// wait for patience in one stride of its own. One that takes a stride in that
// time, 0.8 MB/s, keeps it beside any other: else one fast reader could have all
// the rest broken off. And a stride is much longer than a chunk: else a reader
// that takes a chunk in that time could hold all the rest to its pace.
const (
	// patience outlasts a connection on which four packets in a row are lost:
	// TCP sends them again after 0.2, 0.4, 0.8 and 1.6 s.
	patience = 5 * time.Second
	stride   = 4 << 20
)

// The smallest and the largest chunk. Each chunk is twice the one before, so
// that a small body costs one small allocation and a large one few. The first
// may be smaller: many bodies come in one Write, or with their length said
// before, and then it is all of the body, and nothing has to be cut off it to be
// kept.
const (
	minChunk = 4 << 10
	maxChunk = 256 << 10

	// minFirst is the least Write that is taken for all of a body.
	minFirst = 512
	// maxExpected is the longest body that is believed to come.
	maxExpected = 64 << 10
)

// A Spool is a body that grows. One goroutine at a time writes it; all methods
// but Write are safe for concurrent use. Make one with [New].
//
// Up to its limit the body is collected whether anybody reads it or not, and
// each new Reader begins at byte 0. The Write that would pass the limit makes
// the spool overflow, for good: the body will not be stored, the parts that
// all present readers have passed are dropped, nobody can begin to read once
// byte 0 is among them, and the writer waits while the slowest reader is more
// than the limit behind. If readers that have had all there is wait too long for
// another, that one loses its place. Where all are slow, none waits for another.
//
// Memory is one copy of the body whatever the number of readers: at most the
// limit, and at most the limit and one chunk (256 KiB or less) after the
// overflow.
type Spool struct {
	mu sync.Mutex // guards all below

	limit    int64
	expected int64  // see Expect
	idle     func() // see OnIdle; nil once called

	head *chunk // oldest chunk kept, nil while none is
	tail *chunk // newest chunk, kept or dropped; at first a full one of no bytes
	size int64  // bytes published
	kept int64  // capacity of the chunks from head to tail

	readers  []*Reader // the present ones, each at its Reader.place
	waiting  int       // those of them that need no byte of the tail any more
	overflow bool      // the limit was passed
	flushed  bool      // Flush was called
	end      error     // nil while the body grows, io.EOF once complete, else why it was broken off

	// Both channels are made by the one who waits and closed by the one who
	// has news, under mu: news that comes after a look at the state finds the
	// channel, and one close wakes a thousand readers.
	more chan struct{} // the body has grown or ended; nil unless a reader waits
	room chan struct{} // a chunk was dropped, readers begin or cease to wait, the last one left, or the body ended; nil unless the writer waits
}

// A chunk is a piece of the body. The writer fills it from the front without
// a lock; the readers only ever see what is published, which nobody writes
// again.
type chunk struct {
	start   int64  // position of its first byte in the body; never changes
	size    int    // its capacity; never changes
	buf     []byte // of length size, nil once dropped; guarded by Spool.mu, but the writer may fill buf[n:]
	n       int    // bytes published; guarded by Spool.mu, written by the writer only
	readers int    // readers that still need some byte of it; guarded by Spool.mu
	next    *chunk // guarded by Spool.mu
}

// New returns an empty Spool that collects up to limit bytes. A limit of 0 or
// less collects nothing: the body streams through, one small chunk at a time.
func New(limit int64) *Spool {
	return &Spool{limit: max(0, limit), tail: &chunk{}}
}

// OnIdle has f called once, when the body has ended and nobody reads it. It is
// called under the Spool's lock, and is set before the first Write.
func (s *Spool) OnIdle(f func()) { s.idle = f }

// Expect says how long the body is said to be, before the first Write. A short
// one gets its memory in one piece then. It binds nobody.
func (s *Spool) Expect(n int64) { s.expected = n }

// Narrow lowers the limit, if it is higher, before the body has passed it.
func (s *Spool) Narrow(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = min(s.limit, max(0, limit))
}

// rest calls idle if it is time to. Called with mu held.
func (s *Spool) rest() {
	if s.idle != nil && s.end != nil && len(s.readers) == 0 {
		f := s.idle
		s.idle = nil
		f()
	}
}

// Write appends p to the body. It does not keep p. Within the limit it never
// waits. Over the limit it waits for slow readers, and returns ErrNoReaders as
// soon as there is none; readers therefore have to be there before the body
// can overflow. A Write that fails breaks the body off: no later Close makes
// a complete body of it.
func (s *Spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil && !s.overflow && int64(len(p)) > s.limit-s.size {
		s.overflow = true
		s.drop()
	}
	written := 0
	for {
		if s.end == nil && s.overflow && len(s.readers) == 0 {
			s.finish(ErrNoReaders)
		}
		if s.end != nil {
			return written, s.writeError()
		}
		if written == len(p) {
			return written, nil
		}
		if s.tail.n == s.tail.size {
			if s.overflow && s.kept > s.limit {
				s.awaitRoom()
			} else {
				s.grow(len(p) - written)
			}
			continue
		}
		c := s.tail
		free := c.buf[c.n:]
		// Copying outside the lock keeps a large Write from holding up the
		// readers of what is there already. Only the writer touches free, and
		// drop leaves a chunk alone that is not full.
		s.mu.Unlock()
		n := copy(free, p[written:])
		s.mu.Lock()
		if s.end != nil {
			continue // broken off meanwhile: what nobody saw stays unseen
		}
		written += n
		c.n += n
		s.size += int64(n)
		wake(&s.more)
	}
}

// grow appends a chunk, for so many bytes that are there and others that may
// come. Called with mu held, by the writer.
func (s *Spool) grow(there int) {
	size := min(max(minChunk, 2*s.tail.size), maxChunk)
	if s.size == 0 {
		if 0 < s.expected && s.expected <= maxExpected {
			size = int(s.expected)
		} else if there >= minFirst {
			size = min(there, maxChunk)
		}
	}
	if s.overflow {
		// Small against the limit, so that the readers and the writer do not
		// take turns.
		size = min(size, max(minChunk, int(min(s.limit/4, maxChunk))))
	} else {
		size = int(min(int64(size), s.limit-s.size))
	}
	c := &chunk{start: s.size, size: size, buf: make([]byte, size)}
	// The readers at the end count as readers of this chunk from here on, not
	// from when they wake: else it could be dropped before they see it.
	c.readers, s.waiting = s.waiting, 0
	s.tail.next = c
	s.tail = c
	if s.head == nil {
		s.head = c
	}
	s.kept += int64(size)
}

// drop lets go of the chunks that no reader needs. Called with mu held.
func (s *Spool) drop() {
	if !s.overflow {
		return
	}
	for c := s.head; c != nil && c.readers == 0 && c.n == c.size; c = s.head {
		c.buf = nil
		s.kept -= int64(c.size)
		s.head = c.next
		wake(&s.room)
	}
}

// awaitRoom waits for anything that may let the writer go on. Readers that others
// have waited for long enough lose their places. Called with mu held, which it
// gives up meanwhile.
func (s *Spool) awaitRoom() {
	var over <-chan time.Time // nil while nobody waits: all are on their way to the end
	held := s.waiting > 0
	if held {
		left := patience
		for _, r := range s.slowest() {
			r.advance()
			left = min(left, patience-r.delay)
		}
		over = time.After(left)
	}
	if s.room == nil {
		s.room = make(chan struct{})
	}
	room, since := s.room, time.Now()
	s.mu.Unlock()
	select {
	case <-room:
	case <-over:
	}
	s.mu.Lock()
	if held {
		d := time.Since(since)
		for _, r := range s.slowest() {
			r.delayed(d)
		}
	}
}

// slowest returns the readers that are more than half the limit behind. It is
// the last of them that the writer waits for; but the rest would be next, and if
// their time began only then, many together could have the others wait for as
// many times as long. Called with mu held.
func (s *Spool) slowest() []*Reader {
	var slow []*Reader
	for _, r := range s.readers {
		if c := r.counted(); c != nil && s.size-c.start > s.limit/2 {
			slow = append(slow, r)
		}
	}
	return slow
}

// wake tells all who wait on *ch. Called with mu held.
func wake(ch *chan struct{}) {
	if *ch != nil {
		close(*ch)
		*ch = nil
	}
}

// finish ends the body with err, unless it has ended before. Called with mu
// held.
func (s *Spool) finish(err error) {
	if s.end == nil {
		s.end = err
		wake(&s.more)
		wake(&s.room)
		s.rest()
	}
}

// writeError is why the body takes no more bytes. Called with mu held.
func (s *Spool) writeError() error {
	if s.end == io.EOF {
		return ErrClosed
	}
	return s.end
}

// Flush has each CopyTo flush before its first wait, though it has written
// nothing yet: what comes before the body is to go out. Later Flushes change
// nothing, as readers flush before each wait that follows a write.
func (s *Spool) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.flushed {
		s.flushed = true
		wake(&s.more)
	}
}

// Close says that the body is complete. If it was broken off before, by
// CloseWithError or by a Write that failed, Close leaves it so and returns the
// reason.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(io.EOF)
	if s.end != io.EOF {
		return s.end
	}
	return nil
}

// CloseWithError breaks the body off: a Write that waits returns err, and so
// does CopyTo once its reader has had what was written before. A nil err stands
// for ErrClosed, and an io.EOF becomes an io.ErrUnexpectedEOF, so that no
// reader takes the broken body for a complete one. If the body has ended before, nothing
// happens. It may be called from any goroutine.
func (s *Spool) CloseWithError(err error) {
	switch {
	case err == nil:
		err = ErrClosed
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(err)
}

// Overflowed tells whether the body has passed the limit.
func (s *Spool) Overflowed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overflow
}

// NewReader returns a Reader that begins at byte 0. It returns false if byte 0
// was dropped, or if the body is broken off: who comes now can still get a
// whole one elsewhere. The caller closes the Reader.
func (s *Spool) NewReader() (*Reader, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil && s.end != io.EOF {
		return nil, false
	}
	r := &Reader{s: s, place: len(s.readers)}
	switch {
	case s.head != nil && s.head.start == 0:
		r.c = s.head
		r.c.readers++
	case s.tail.size == 0: // not a byte so far
		r.c, r.past = s.tail, true
		s.waiting++
	default:
		return nil, false
	}
	s.readers = append(s.readers, r)
	return r, true
}

// A Reader reads a [Spool] from its first byte. One goroutine uses it at a
// time, but for Close.
type Reader struct {
	s       *Spool
	c       *chunk // where it reads; nil once closed; guarded by s.mu
	off     int    // bytes of c it is done with; guarded by s.mu
	lent    int    // bytes of c behind off that next has given out; guarded by s.mu
	flushed bool   // it has flushed; used by the reading goroutine
	past    bool   // done with the whole of c, and counted in c.next or, failing that, in s.waiting; guarded by s.mu
	place   int    // in s.readers; guarded by s.mu
	end     error  // why c is nil; guarded by s.mu
	lost    func() // see OnLoss; guarded by s.mu

	began int64         // where in the body its present stride begins; guarded by s.mu
	delay time.Duration // for how long it has had the others wait since; guarded by s.mu
}

// OnLoss has f called when the reader loses its place, while CopyTo may hang in a
// Write. It is called under the Spool's lock, and not if the place is lost already.
func (r *Reader) OnLoss(f func()) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.lost = f
}

// counted returns the chunk that counts the reader among its readers, nil if
// s.waiting does. Called with s.mu held.
func (r *Reader) counted() *chunk {
	if r.past {
		return r.c.next
	}
	return r.c
}

// advance begins the reader's next stride, if it is there, and reports whether it
// is. Called with s.mu held, and not for a reader at the end.
func (r *Reader) advance() bool {
	at := r.counted().start
	if at-r.began < stride {
		return false
	}
	r.began, r.delay = at, 0
	return true
}

// delayed counts that the others have waited d, unless the reader has come a
// stride further meanwhile: it was another that they waited for. Called with s.mu
// held.
func (r *Reader) delayed(d time.Duration) {
	if r.advance() {
		return
	}
	if r.delay += d; r.delay < patience {
		return
	}
	r.leave(ErrTooSlow)
	if r.lost != nil {
		r.lost()
	}
}

// next returns the next piece of the body, not copied. It waits until there is
// one. The piece is valid for good, but counts as unread until the next call;
// the caller does not modify it.
//
// At the end it returns io.EOF if the body is complete, else the error it was
// broken off with. If ctx ends first, it returns ctx's cause; the Reader loses
// nothing by that.
//
// Before it waits it calls idle, and flush, once in a Reader's life, if the spool's
// Flush was called; either may be nil.
func (r *Reader) next(ctx context.Context, idle, flush func() error) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r.pass()
	for {
		if r.c == nil {
			return nil, r.end
		}
		if r.past && r.c.next != nil {
			r.c, r.off, r.past = r.c.next, 0, false
		}
		if !r.past && r.c.n > r.off {
			b := r.c.buf[r.off:r.c.n:r.c.n]
			r.lent = len(b)
			return b, nil
		}
		if s.end != nil {
			return nil, s.end
		}
		if idle == nil && s.flushed && !r.flushed {
			idle = flush
		}
		if idle != nil {
			f := idle
			idle, r.flushed = nil, true
			s.mu.Unlock()
			err := f()
			s.mu.Lock()
			if err != nil {
				return nil, err
			}
			continue // look again: f took its time
		}
		if s.more == nil {
			s.more = make(chan struct{})
		}
		more := s.more
		s.mu.Unlock()
		var err error
		select {
		case <-more:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		s.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
}

// pass gives back what next has lent. Called with s.mu held.
func (r *Reader) pass() {
	r.off += r.lent
	r.lent = 0
	if r.c == nil || r.past || r.off < r.c.size {
		return
	}
	r.past = true
	r.c.readers--
	if r.c.next != nil {
		r.c.next.readers++
	} else if r.s.waiting++; r.s.waiting == 1 {
		wake(&r.s.room)
	}
	r.s.drop()
}

// CopyTo writes the rest of the body to w as it comes, and returns the number
// of bytes written. It returns nil at the end of a complete body, else what
// the body, w or flush ended with.
//
// If flush is not nil, it is called before each wait for more that follows a
// write, so that what is there does not sit in w's buffers meanwhile; and before
// the first wait if the spool's Flush was called.
func (r *Reader) CopyTo(ctx context.Context, w io.Writer, flush func() error) (int64, error) {
	var total int64
	var idle func() error // flush, if something was written since it last ran
	for {
		b, err := r.next(ctx, idle, flush)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		n, err := w.Write(b)
		total += int64(n)
		if err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
		idle = flush
	}
}

// Close ends the reading. The pieces that were written from it stay valid. It may be
// called again, and always returns nil.
func (r *Reader) Close() error {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.c != nil {
		r.leave(ErrClosed)
	}
	return nil
}

// leave ends the reading, for which next returns err from then on. Called with
// s.mu held.
func (r *Reader) leave(err error) {
	s := r.s
	if c := r.counted(); c != nil {
		c.readers--
	} else if s.waiting--; s.waiting == 0 {
		wake(&s.room)
	}
	r.c, r.end = nil, err // a Reader that somebody keeps would keep all chunks behind it
	last := s.readers[len(s.readers)-1]
	s.readers[r.place], last.place = last, r.place
	s.readers[len(s.readers)-1] = nil
	s.readers = s.readers[:len(s.readers)-1]
	s.drop()
	if len(s.readers) == 0 {
		if s.overflow {
			s.finish(ErrNoReaders)
		}
		wake(&s.room)
		s.rest()
	}
}
