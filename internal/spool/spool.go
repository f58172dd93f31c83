// Package spool holds a body that grows while many clients read it. A rebuild writes its response
// into a [Spool], and each waiting caller copies it out through its own [Reader]: the first byte
// reaches all callers at once, and a slow or leaving reader does not affect the others.
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
	// ErrNoReaders is Write's error for a body over the limit, and so not stored, without readers.
	ErrNoReaders = errors.New("bellwether: no client reads a body too large to store")

	// ErrClosed is the error of a Write after the body has ended, of a CopyTo after its reader was
	// closed, and of both if the body was broken off without a reason.
	ErrClosed = errors.New("bellwether: spool is closed")

	// ErrTooSlow is the error of a CopyTo whose reader has lost its place, see [Spool].
	ErrTooSlow = errors.New("bellwether: reader is too slow for the others")
)

// A reader loses its place if other readers wait for it for Patience within one stride, see [Spool]. A stride
// in that time (0.8 MB/s) keeps the place: otherwise one fast reader could break off all others. A stride is
// much longer than a chunk: otherwise a chunk in that time could hold all others to its reader's pace.
const (
	// Patience outlasts four lost packets in a row: TCP sends again after 0.2, 0.4, 0.8 and 1.6 s.
	Patience = 5 * time.Second
	stride   = 4 << 20
)

// Each chunk is twice the one before: a small body costs one small allocation, a large body a few. A body
// that comes in one Write, or has announced its length, is exactly the first chunk: Body need not copy it.
const (
	minChunk = 4 << 10
	maxChunk = 256 << 10

	// minFirst is the smallest Write that counts as the whole body.
	minFirst = 512
	// maxExpected is the longest announced body that Expect believes.
	maxExpected = 64 << 10
)

// A Spool is a growing body. One goroutine at a time writes; all else is safe for concurrent use.
//
// Up to its limit the spool collects the body with or without readers, and each new Reader begins
// at byte 0. The Write that would pass the limit makes the spool overflow, for good:
//
//   - The body will not be stored.
//   - The parts that all present readers have passed are dropped. Without byte 0, NewReader fails.
//   - The writer waits while the slowest reader is more than the limit behind.
//   - A reader loses its place if readers at the end of the body wait for it too long. If all
//     readers are slow, none loses its place.
//
// Memory, for any number of readers: at most the limit, after the overflow one chunk (256 KiB or less) more.
type Spool struct {
	mu sync.Mutex // guards the fields below

	limit    int64
	expected int64  // see Expect
	idle     func() // see OnIdle; nil once called

	head *chunk // oldest kept chunk, nil if there is none
	tail *chunk // newest chunk, kept or dropped; at first a full chunk without bytes
	size int64  // bytes published
	kept int64  // capacity of the chunks from head to tail

	readers  []*Reader // the present readers, each at its Reader.place
	waiting  int       // number of readers that need no more bytes of the tail
	overflow bool      // the body has passed the limit
	flushed  bool      // Flush was called
	end      error     // nil while the body grows, io.EOF once complete, else why it was broken off

	// The waiting goroutine makes the channel, and the goroutine with news closes it, under mu.
	// News after a look at the state finds the channel, and one close wakes a thousand readers.
	more chan struct{} // the body has grown or ended; nil if no reader waits
	room chan struct{} // a chunk was dropped, readers begin or cease to wait, or the body ended; nil if the writer does not wait
}

// A chunk is a piece of the body. The writer fills it without a lock; readers see published bytes only.
type chunk struct {
	start   int64  // position of its first byte in the body; immutable
	size    int    // its capacity; immutable
	buf     []byte // of length size, nil once dropped; guarded by Spool.mu, except buf[n:] for the writer
	n       int    // bytes published; guarded by Spool.mu, written by the writer only
	readers int    // readers that still need bytes; guarded by Spool.mu
	next    *chunk // guarded by Spool.mu
}

// New returns an empty Spool that collects up to limit bytes. With 0 or less the body streams through.
func New(limit int64) *Spool {
	return &Spool{limit: max(0, limit), tail: &chunk{}}
}

// OnIdle sets the function that the Spool calls once, when the body has ended and has no reader.
// Call OnIdle before the first Write. f runs under the Spool's lock.
func (s *Spool) OnIdle(f func()) { s.idle = f }

// Expect hints at the body's length, before the first Write, so a short body gets one piece of memory.
func (s *Spool) Expect(n int64) { s.expected = n }

// Narrow lowers the limit before the body has passed it. A higher limit changes nothing.
func (s *Spool) Narrow(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = min(s.limit, max(0, limit))
}

// Len returns the number of bytes written so far, dropped ones included.
func (s *Spool) Len() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size
}

// rest calls idle if it is due. mu is held.
func (s *Spool) rest() {
	if s.idle != nil && s.end != nil && len(s.readers) == 0 {
		f := s.idle
		s.idle = nil
		f()
	}
}

// Write appends p to the body, and does not keep p. Within the limit it never waits. Over the limit
// it waits for slow readers, and returns ErrNoReaders as soon as there are none: readers must be
// there before the overflow. A failed Write breaks the body off: a later Close does not complete it.
func (s *Spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil && !s.overflow && int64(len(p)) > s.limit-s.size {
		s.overflow = true
		s.drop()
	}
	written := 0
	for {
		if s.overflow && len(s.readers) == 0 {
			s.finish(ErrNoReaders)
		}
		if s.end != nil {
			return written, s.writeError()
		}
		if written == len(p) {
			return written, nil
		}
		if s.tail.n == s.tail.size {
			if s.kept > s.limit {
				s.awaitRoom()
			} else {
				s.grow(len(p) - written)
			}
			continue
		}
		c := s.tail
		free := c.buf[c.n:]
		// The copy is outside the lock, so a large Write does not hold up the readers of earlier
		// bytes. Only the writer uses free, and drop leaves a chunk alone that is not full.
		s.mu.Unlock()
		n := copy(free, p[written:])
		s.mu.Lock()
		if s.end != nil {
			continue // broken off meanwhile: the unpublished bytes stay unseen
		}
		written += n
		c.n += n
		s.size += int64(n)
		wake(&s.more)
	}
}

// grow appends a chunk for the bytes that are there and for later bytes. mu is held by the writer.
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
		// Small against the limit, so the readers and the writer do not take turns.
		size = min(size, max(minChunk, int(min(s.limit/4, maxChunk))))
	} else {
		size = int(min(int64(size), s.limit-s.size))
	}
	c := &chunk{start: s.size, size: size, buf: make([]byte, size)}
	// The waiting readers count from here on, not from their waking: the chunk could be dropped before.
	c.readers, s.waiting = s.waiting, 0
	s.tail.next = c
	s.tail = c
	if s.head == nil {
		s.head = c
	}
	s.kept += int64(size)
}

// drop drops the chunks that no reader needs. mu is held.
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

// awaitRoom waits for room, or until a slow reader loses its place. mu is held, and released during the wait.
func (s *Spool) awaitRoom() {
	var over <-chan time.Time // nil if no reader waits: all are on their way to the end
	held := s.waiting > 0
	if held {
		left := Patience
		for _, r := range s.slowest() {
			r.advance()
			left = min(left, Patience-r.delay)
		}
		over = time.After(left)
	}
	room, since := make(chan struct{}), time.Now()
	s.room = room
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

// slowest returns the readers that are more than half the limit behind. The writer waits for the last, but
// the time of all runs: in turn, they could hold up the rest for many times Patience. mu is held.
func (s *Spool) slowest() []*Reader {
	var slow []*Reader
	for _, r := range s.readers {
		if c := r.counted(); c != nil && s.size-c.start > s.limit/2 {
			slow = append(slow, r)
		}
	}
	return slow
}

// wake wakes all waiters on *ch. mu is held.
func wake(ch *chan struct{}) {
	if *ch != nil {
		close(*ch)
		*ch = nil
	}
}

// finish ends the body with err, unless it has already ended. mu is held.
func (s *Spool) finish(err error) {
	if s.end == nil {
		s.end = err
		wake(&s.more)
		wake(&s.room)
		s.rest()
	}
}

// writeError is why the body takes no more bytes. mu is held.
func (s *Spool) writeError() error {
	if s.end == io.EOF {
		return ErrClosed
	}
	return s.end
}

// Flush makes each CopyTo flush before its first wait, even without a byte: the header must go out.
// Later Flushes change nothing, because a CopyTo flushes before each wait after a write.
func (s *Spool) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.flushed {
		s.flushed = true
		wake(&s.more)
	}
}

// Close completes the body. For a broken body Close returns the reason instead.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(io.EOF)
	if s.end != io.EOF {
		return s.end
	}
	return nil
}

// CloseWithError breaks the body off: a waiting Write returns err, and so does a CopyTo after the bytes
// already written. A nil err becomes ErrClosed. An io.EOF becomes an io.ErrUnexpectedEOF, so no reader
// takes the broken body for a complete one. After the body's end it does nothing.
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

// Overflowed reports whether the body has passed the limit.
func (s *Spool) Overflowed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overflow
}

// NewReader returns a Reader that begins at byte 0. The result is false if byte 0 was dropped, or if the
// body is broken off: a new client can still get a whole one elsewhere. The caller closes the Reader.
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
	case s.tail.size == 0: // no byte so far
		r.c, r.past = s.tail, true
		s.waiting++
	default:
		return nil, false
	}
	s.readers = append(s.readers, r)
	return r, true
}

// A Reader reads a [Spool] from its first byte. One goroutine at a time uses it, except for Close.
type Reader struct {
	s       *Spool
	c       *chunk // the present chunk; nil once closed; guarded by s.mu
	off     int    // bytes of c already passed; guarded by s.mu
	lent    int    // bytes of c after off that next has returned; guarded by s.mu
	flushed bool   // it has flushed; used by the reading goroutine
	past    bool   // done with the whole of c, and counted in c.next, or without a next chunk in s.waiting; guarded by s.mu
	place   int    // in s.readers; guarded by s.mu
	end     error  // why c is nil; guarded by s.mu
	lost    func() // see OnLoss; guarded by s.mu

	began int64         // where in the body its present stride begins; guarded by s.mu
	delay time.Duration // how long others have waited for it in this stride; guarded by s.mu
}

// OnLoss sets the function that the Spool calls when the reader loses its place, while CopyTo may
// hang in a Write. f runs under the Spool's lock. If the place is already lost, f does not run.
func (r *Reader) OnLoss(f func()) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.lost = f
}

// counted returns the chunk that counts the reader, nil if s.waiting does. s.mu is held.
func (r *Reader) counted() *chunk {
	if r.past {
		return r.c.next
	}
	return r.c
}

// advance begins and reports the next stride if it is reached. s.mu is held; r is not at the end.
func (r *Reader) advance() bool {
	at := r.counted().start
	if at-r.began < stride {
		return false
	}
	r.began, r.delay = at, 0
	return true
}

// delayed adds d to the delay, unless in a new stride: the wait was for another reader. s.mu is held.
func (r *Reader) delayed(d time.Duration) {
	if r.advance() {
		return
	}
	if r.delay += d; r.delay < Patience {
		return
	}
	r.leave(ErrTooSlow)
	if r.lost != nil {
		r.lost()
	}
}

// next returns the next piece of the body without a copy, and waits for it. The piece stays valid, must not
// be modified, and counts as unread until the next call. The error is io.EOF at the end of a complete body,
// else the reason of the break. If ctx ends first, it is ctx's cause, and the Reader loses no bytes. Before a
// wait next calls idle, and once in a Reader's life flush, if Flush was called. Both may be nil. After Flush, next calls
// them also before the reason of a break: the reader may drop the bytes that are still in its buffers.
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
		if r.c.n > r.off {
			b := r.c.buf[r.off:r.c.n:r.c.n]
			r.lent = len(b)
			return b, nil
		}
		if idle == nil && s.flushed && !r.flushed {
			idle = flush
		}
		if s.end != nil && (idle == nil || s.end == io.EOF || !s.flushed) {
			return nil, s.end
		}
		if idle != nil {
			f := idle
			idle, r.flushed = nil, true
			if err := s.unlocked(f); err != nil {
				return nil, err
			}
			continue // look again: the state may have changed during f
		}
		if s.more == nil {
			s.more = make(chan struct{})
		}
		more := s.more
		err := s.unlocked(func() error {
			select {
			case <-more:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			return nil, err
		}
	}
}

// unlocked runs f without mu, which is held before and after. f calls user code, a ResponseWriter or a Context. Its panic
// or Goexit runs the deferred Unlock of the caller, and an Unlock of an unlocked mutex ends the process.
func (s *Spool) unlocked(f func() error) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	return f()
}

// pass gives back the piece of the last next. s.mu is held.
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

// CopyTo writes the rest of the body to w as it grows, and returns the number of bytes. The error is nil for
// a complete body, else the error of the body, of w or of flush. flush may be nil. It runs before each wait
// that follows a write, so no byte sits in w's buffers, and, after the spool's Flush, before the first wait and
// before the error of the body.
func (r *Reader) CopyTo(ctx context.Context, w io.Writer, flush func() error) (int64, error) {
	var total int64
	var idle func() error // flush, if a write has followed the last flush
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

// Close ends the reading. Written pieces stay valid. It may be called again, and returns nil.
func (r *Reader) Close() error {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.c != nil {
		r.leave(ErrClosed)
	}
	return nil
}

// leave ends the reading: next returns err from then on. s.mu is held.
func (r *Reader) leave(err error) {
	s := r.s
	if c := r.counted(); c != nil {
		c.readers--
	} else if s.waiting--; s.waiting == 0 {
		wake(&s.room)
	}
	r.c, r.end = nil, err // a kept Reader would keep all later chunks
	last := s.readers[len(s.readers)-1]
	s.readers[r.place], last.place = last, r.place
	s.readers[len(s.readers)-1] = nil
	s.readers = s.readers[:len(s.readers)-1]
	s.drop()
	if len(s.readers) == 0 {
		if s.overflow {
			s.finish(ErrNoReaders)
		}
		s.rest()
	}
}
