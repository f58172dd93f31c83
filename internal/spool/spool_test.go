package spool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// body returns n bytes. No two chunks of it are equal.
func body(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}

func join(t testing.TB, s *Spool) *Reader {
	t.Helper()
	r, ok := s.NewReader()
	if !ok {
		t.Fatal("NewReader: the start is gone")
	}
	return r
}

func write(t testing.TB, s *Spool, p []byte) {
	t.Helper()
	if n, err := s.Write(p); n != len(p) || err != nil {
		t.Fatalf("Write = %d, %v, want %d, nil", n, err, len(p))
	}
}

func whole(s *Spool) ([]byte, bool) {
	b, ok := s.Body()
	return b.Append([]byte{}), ok
}

func checkRead(t testing.TB, r *Reader, want []byte, wantErr error) {
	t.Helper()
	var got bytes.Buffer
	n, err := r.WriteTo(&got)
	if !errors.Is(err, wantErr) || err == nil != (wantErr == nil) {
		t.Errorf("WriteTo = %v, want %v", err, wantErr)
	}
	if n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("read %d bytes, want the %d written", n, len(want))
	}
}

func TestSpool_Complete(t *testing.T) {
	for _, n := range []int{0, 1, minChunk, minChunk + 1, 1 << 20} {
		want := body(n)
		s := New(int64(n)) // just within the limit
		early := join(t, s)
		for p := range slices.Chunk(want, 1000) {
			write(t, s, p)
		}
		if _, ok := whole(s); ok {
			t.Errorf("%d: Body of a body that still grows", n)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%d: Close = %v", n, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%d: second Close = %v", n, err)
		}
		if got, ok := whole(s); !ok || !bytes.Equal(got, want) {
			t.Errorf("%d: Body = %d bytes, %v", n, len(got), ok)
		}
		late := join(t, s)
		for _, r := range []*Reader{early, late} {
			checkRead(t, r, want, nil)
			if b, err := r.Next(t.Context()); b != nil || err != io.EOF {
				t.Errorf("%d: Next at the end = %d bytes, %v, want io.EOF", n, len(b), err)
			}
			r.Close()
		}
		if s.Overflowed() || s.Len() != int64(n) || s.Readers() != 0 || s.kept > s.limit {
			t.Errorf("%d: overflowed %v, len %d, readers %d, memory %d", n, s.Overflowed(), s.Len(), s.Readers(), s.kept)
		}
		if _, err := s.Write([]byte("x")); err != ErrClosed {
			t.Errorf("%d: Write after Close = %v, want ErrClosed", n, err)
		}
	}
}

// A late reader gets the first byte at once, and each further piece when it is written.
func TestReader_LateJoiner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		start := time.Now()
		go func() {
			for range 10 {
				s.Write([]byte("piece"))
				time.Sleep(time.Second)
			}
			s.Close()
		}()
		time.Sleep(4500 * time.Millisecond)
		r := join(t, s)
		defer r.Close()
		b, err := r.Next(t.Context())
		if string(b) != "piecepiecepiecepiecepiece" || err != nil || time.Since(start) != 4500*time.Millisecond {
			t.Errorf("Next = %q, %v after %v, want five pieces at once", b, err, time.Since(start))
		}
		b, err = r.Next(t.Context())
		if string(b) != "piece" || err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("Next = %q, %v after %v, want one piece when it is written", b, err, time.Since(start))
		}
		checkRead(t, r, []byte("piecepiecepiecepiece"), nil)
	})
}

func TestReader_SlowHoldsUpNobodyWithinLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := body(1 << 20)
		s := New(1 << 20)
		slow, fast := join(t, s), join(t, s)
		defer slow.Close()
		defer fast.Close()
		start := time.Now()
		var group sync.WaitGroup
		group.Go(func() {
			var got []byte
			for {
				b, err := slow.Next(t.Context())
				if err != nil {
					break
				}
				got = append(got, b...)
				time.Sleep(time.Minute)
			}
			if !bytes.Equal(got, want) {
				t.Error("the slow reader's body differs")
			}
		})
		group.Go(func() {
			checkRead(t, fast, want, nil)
			if d := time.Since(start); d != 0 {
				t.Errorf("the fast reader took %v", d)
			}
		})
		write(t, s, want)
		s.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("the writer took %v", d)
		}
		group.Wait()
	})
}

func TestReader_Leaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		gone := errors.New("the client has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		leaver, other := join(t, s), join(t, s)
		defer other.Close()
		errs := make(chan error)
		go func() {
			_, err := leaver.Next(ctx)
			leaver.Close()
			leaver.Close()
			errs <- err
		}()
		synctest.Wait()
		cancel(gone)
		if err := <-errs; err != gone {
			t.Errorf("Next = %v, want ctx's cause", err)
		}
		if _, err := leaver.Next(t.Context()); err != ErrClosed {
			t.Errorf("Next after Close = %v, want ErrClosed", err)
		}
		if got := s.Readers(); got != 1 {
			t.Errorf("%d readers, want 1", got)
		}
		write(t, s, []byte("x"))
		s.Close()
		checkRead(t, other, []byte("x"), nil)
	})
}

// A ctx that ends while a reader waits costs no byte.
func TestReader_NextAfterCancelledNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(10)
		r := join(t, s)
		defer r.Close()
		write(t, s, []byte("ab"))
		r.Next(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Next(ctx); err != context.DeadlineExceeded {
			t.Fatalf("Next = %v, want DeadlineExceeded", err)
		}
		write(t, s, []byte("cd"))
		s.Close()
		checkRead(t, r, []byte("cd"), nil)
	})
}

func TestSpool_BrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		s := New(1 << 20)
		r := join(t, s)
		defer r.Close()
		write(t, s, []byte("half"))
		time.AfterFunc(time.Second, func() { s.CloseWithError(broken) })
		checkRead(t, r, []byte("half"), broken)
		if err := s.Close(); err != broken {
			t.Errorf("Close = %v, want the reason", err)
		}
		if _, ok := whole(s); ok {
			t.Error("Body of a broken body")
		}
		if _, ok := s.NewReader(); ok {
			t.Error("NewReader of a broken body")
		}
		if _, err := s.Write([]byte("x")); err != broken {
			t.Errorf("Write = %v, want the reason", err)
		}
	})
	for in, want := range map[error]error{nil: ErrClosed, io.EOF: io.ErrUnexpectedEOF} {
		s := New(0)
		r := join(t, s)
		s.CloseWithError(in)
		if _, err := r.Next(t.Context()); !errors.Is(err, want) || errors.Is(err, io.EOF) {
			t.Errorf("CloseWithError(%v): Next = %v, want %v", in, err, want)
		}
		r.Close()
	}
	s := New(0)
	s.Close()
	s.CloseWithError(errors.New("late"))
	if b, ok := whole(s); !ok || len(b) != 0 {
		t.Errorf("Body = %q, %v: a complete body was broken off", b, ok)
	}
}

func TestSpool_OverflowBackPressure(t *testing.T) {
	for _, limit := range []int64{0, 1, minChunk, 100 << 10, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			want := body(5 << 20)
			s := New(limit)
			slow, fast := join(t, s), join(t, s)
			defer slow.Close()
			defer fast.Close()
			var group sync.WaitGroup
			group.Go(func() {
				for p := range slices.Chunk(want, 77<<10) {
					write(t, s, p)
				}
				s.Close()
			})
			group.Go(func() { checkRead(t, fast, want, nil) })
			var got []byte
			for len(got) < len(want) {
				b, err := slow.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // all others read as far as they can
				s.mu.Lock()
				kept, ahead := s.kept, s.size-int64(len(got))
				s.mu.Unlock()
				if kept > limit+maxChunk || s.Overflowed() && ahead > limit+maxChunk {
					t.Fatalf("limit %d: %d bytes kept, writer %d ahead", limit, kept, ahead)
				}
				got = append(got, b...)
			}
			if !bytes.Equal(got, want) {
				t.Error("the slow reader's body differs")
			}
			group.Wait()
			if _, ok := s.NewReader(); ok {
				t.Error("NewReader although the start is gone")
			}
			if _, ok := whole(s); ok || !s.Overflowed() {
				t.Error("a body over the limit can be stored")
			}
		})
	}
}

// readAt reads rate bytes a second, or all at once for 0, until the body ends or the place is lost.
func readAt(r *Reader, rate int) (n int, took time.Duration, err error) {
	start := time.Now()
	w := writerFunc(func(p []byte) (int, error) {
		if rate > 0 {
			time.Sleep(time.Duration(len(p)) * time.Second / time.Duration(rate))
		}
		return len(p), nil
	})
	total, err := r.CopyTo(context.Background(), w, nil)
	r.Close()
	return int(total), time.Since(start), err
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Over the limit a reader loses its place only if others have waited for it for Patience in a stride.
func TestReader_LosesItsPlace(t *testing.T) {
	const size = 24 << 20
	for _, c := range []struct {
		name  string
		limit int64
		rates []int
		lose  []bool
		most  time.Duration // the time of the readers that keep their places
	}{
		{"it takes nothing", 2 << 20, []int{1, 0, 0}, []bool{true, false, false}, Patience},
		{"it takes less than a stride in the time", 2 << 20, []int{stride / 6, 0}, []bool{true, false}, 3 * Patience},
		{"it takes a stride in the time", 2 << 20, []int{stride / 4, 0}, []bool{false, false}, 24 * time.Second},
		{"the limit is small", 64 << 10, []int{1, 0, 0}, []bool{true, false, false}, Patience},
		{"nothing is collected", 0, []int{1, 0, 0}, []bool{true, false, false}, Patience},
		{"many at a time", 2 << 20, []int{1, 1, 1, 0}, []bool{true, true, true, false}, Patience},
		{"another takes nothing", 24 << 19, []int{1, stride / 4, 0}, []bool{true, false, false}, 24 * time.Second},
		{"all are slow", 2 << 20, []int{10_000, 10_000}, []bool{false, false}, time.Hour},
		{"it is alone", 2 << 20, []int{100}, []bool{false}, 100 * time.Hour},
		{"within the limit", size, []int{100, 0}, []bool{false, false}, 100 * time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(c.limit)
				var group sync.WaitGroup
				for i, rate := range c.rates {
					r := join(t, s)
					group.Go(func() {
						n, took, err := readAt(r, rate)
						switch {
						case c.lose[i] && err != ErrTooSlow:
							t.Errorf("reader %d: CopyTo = %d, %v, want ErrTooSlow", i, n, err)
						case !c.lose[i] && (err != nil || n != size || took > c.most):
							t.Errorf("reader %d: CopyTo = %d, %v after %v, want all within %v", i, n, err, took, c.most)
						}
					})
				}
				p := make([]byte, 32<<10)
				for range size / len(p) {
					write(t, s, p)
				}
				s.Close()
				group.Wait()
			})
		})
	}
}

// In a stride a reader has Patience in all, and in the next stride the whole Patience again.
func TestReader_DelaysAddUpInAStride(t *testing.T) {
	const delay = Patience - time.Second // at the body's start
	for stall, want := range map[int]time.Duration{stride / 4: Patience, stride: delay + Patience} {
		synctest.Test(t, func(t *testing.T) {
			s, start := New(2<<20), time.Now()
			slow, fast := join(t, s), join(t, s)
			var lost time.Duration
			slow.OnLoss(func() { lost = time.Since(start) })
			var group sync.WaitGroup
			group.Go(func() { readAt(fast, 0) })
			group.Go(func() {
				taken := 0
				slow.CopyTo(t.Context(), writerFunc(func(p []byte) (int, error) {
					if taken == 0 {
						time.Sleep(delay)
					}
					if taken += len(p); taken > stall {
						time.Sleep(time.Hour)
					}
					return len(p), nil
				}), nil)
			})
			write(t, s, make([]byte, 8<<20))
			s.Close()
			group.Wait()
			if lost != want {
				t.Errorf("stalled at %d: the place is lost after %v, want %v", stall, lost, want)
			}
		})
	}
}

// Slow readers at different places lose their places at the same time, not in turn.
func TestReader_LosesItsPlaceInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, limit = 24 << 20, 8 << 20
		s := New(limit)
		var group sync.WaitGroup
		for i := range size / maxChunk {
			r := join(t, s)
			group.Go(func() {
				defer r.Close()
				took := 0
				w := writerFunc(func(p []byte) (int, error) {
					if took += len(p); took > i*maxChunk {
						time.Sleep(time.Hour)
					}
					return len(p), nil
				})
				r.CopyTo(t.Context(), w, nil)
			})
		}
		fast := join(t, s)
		group.Go(func() {
			if n, took, err := readAt(fast, 0); err != nil || n != size || took > (size/(limit/2)+1)*Patience {
				t.Errorf("CopyTo = %d, %v after %v", n, err, took)
			}
		})
		write(t, s, make([]byte, size))
		s.Close()
		group.Wait()
	})
}

// OnLoss's function runs at once, and the slow reader's time begins when the first other reader begins
// to wait, even if the writer already waits.
func TestReader_OnLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(64 << 10)
		slow, fast := join(t, s), join(t, s)
		defer fast.Close()
		start := time.Now()
		var lost []time.Duration
		slow.OnLoss(func() { lost = append(lost, time.Since(start)) })
		wrote := make(chan struct{})
		go func() {
			defer close(wrote)
			write(t, s, body(200<<10))
			s.Close()
		}()
		time.Sleep(time.Minute) // all are slow
		s.mu.Lock()
		if len(lost) > 0 {
			t.Errorf("it is lost after %v, when nobody has waited", lost)
		}
		s.mu.Unlock()
		checkRead(t, fast, body(200<<10), nil)
		<-wrote
		if !slices.Equal(lost, []time.Duration{time.Minute + Patience}) {
			t.Errorf("told after %v, want %v", lost, time.Minute+Patience)
		}
		for range 2 {
			if _, err := slow.Next(t.Context()); err != ErrTooSlow {
				t.Errorf("Next = %v, want ErrTooSlow", err)
			}
			slow.Close() // changes nothing
		}
	})
}

func TestSpool_OverflowFreesMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	s := New(1 << 20)
	r := join(t, s)
	defer r.Close()
	p := body(32 << 10)
	before := heap()
	for range 2 << 10 { // 64 MiB
		write(t, s, p)
		for range 2 { // the second may be the rest, in the next chunk
			if s.Len() > r.c.start+int64(r.off+r.lent) {
				r.Next(t.Context())
			}
		}
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	runtime.KeepAlive(s)
}

// The overflow drops the parts that all have passed: beside a reader that hangs in its flush there is a limit's room.
func TestSpool_OverflowBesideAFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 64 << 10
		s, hang := New(limit), make(chan struct{})
		r := join(t, s)
		write(t, s, body(limit))
		var reading sync.WaitGroup
		reading.Go(func() {
			defer r.Close()
			if n, err := r.CopyTo(t.Context(), io.Discard, func() error { <-hang; return nil }); n != 2*limit || err != nil {
				t.Errorf("CopyTo = %d, %v, want %d, nil", n, err, 2*limit)
			}
		})
		synctest.Wait()
		write(t, s, body(limit))
		close(hang)
		s.Close()
		reading.Wait()
	})
}

// While byte 0 is there, a reader can join an overflowed body.
func TestSpool_JoinAfterOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := body(20 << 10)
		s := New(16 << 10)
		first := join(t, s)
		go func() {
			s.Write(want)
			s.Close()
		}()
		synctest.Wait()
		if !s.Overflowed() {
			t.Fatal("no overflow")
		}
		second := join(t, s)
		first.Close()
		checkRead(t, second, want, nil)
		second.Close()
	})
}

func TestSpool_OverflowAllLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(10)
		write(t, s, body(10))
		if n, err := s.Write([]byte("x")); n != 0 || err != ErrNoReaders {
			t.Errorf("Write over the limit = %d, %v, want ErrNoReaders", n, err)
		}
		if err := s.Close(); err != ErrNoReaders {
			t.Errorf("Close = %v: it made a whole body of a cut one", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := New(10)
		a, b := join(t, s), join(t, s)
		time.AfterFunc(1*time.Second, func() { a.Close() })
		time.AfterFunc(2*time.Second, func() { b.Close() })
		start := time.Now()
		if _, err := s.Write(body(1 << 20)); err != ErrNoReaders || time.Since(start) != 2*time.Second {
			t.Errorf("Write = %v after %v, want ErrNoReaders when the last one leaves", err, time.Since(start))
		}
	})
}

func TestSpool_AbortUnblocksWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		abort := errors.New("abort")
		s := New(10)
		r := join(t, s)
		defer r.Close()
		time.AfterFunc(time.Second, func() { s.CloseWithError(abort) })
		if _, err := s.Write(body(1 << 20)); err != abort {
			t.Errorf("Write = %v, want the abort", err)
		}
	})
}

// CopyTo calls flush before each wait that follows a write, and at no other time.
func TestReader_CopyToFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		r := join(t, s)
		defer r.Close()
		go func() {
			time.Sleep(time.Second) // no byte to flush before this
			s.Write(body(10_000))   // two chunks, and one flush unless it runs between them
			time.Sleep(time.Second)
			s.Write([]byte("x"))
			time.Sleep(time.Second)
			s.Close()
		}()
		start := time.Now()
		var at []time.Duration
		n, err := r.CopyTo(t.Context(), io.Discard, func() error {
			at = append(at, time.Since(start))
			return nil
		})
		if n != 10_001 || err != nil {
			t.Errorf("CopyTo = %d, %v", n, err)
		}
		if len(at) > 3 || !slices.Equal(slices.Compact(at), []time.Duration{time.Second, 2 * time.Second}) {
			t.Errorf("flushed at %v, want after 1 s and 2 s", at)
		}
	})
}

// Flush makes the header go out at once, and once.
func TestSpool_Flush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		start := time.Now()
		copying := func() (at []time.Duration) {
			r := join(t, s)
			defer r.Close()
			if n, err := r.CopyTo(t.Context(), io.Discard, func() error {
				at = append(at, time.Since(start))
				return nil
			}); n != 1 || err != nil {
				t.Errorf("CopyTo = %d, %v", n, err)
			}
			return at
		}
		var group sync.WaitGroup
		for _, joined := range []time.Duration{0, 2 * time.Second} {
			group.Go(func() {
				time.Sleep(joined)
				want := []time.Duration{max(joined, time.Second), 4 * time.Second}
				if at := copying(); !slices.Equal(at, want) {
					t.Errorf("flushed at %v, want at %v", at, want)
				}
			})
		}
		time.Sleep(time.Second)
		s.Flush()
		s.Flush()
		time.Sleep(2 * time.Second)
		s.Flush()
		time.Sleep(time.Second)
		write(t, s, []byte("x"))
		time.Sleep(time.Second)
		s.Close()
		group.Wait()
	})
}

type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) - 1, nil }

// A body that its writer has flushed and broken off reaches the client up to the break, also with its header alone.
func TestReader_CopyToFlushesBeforeABreak(t *testing.T) {
	for _, tt := range []struct {
		name    string
		body    string
		flushed bool
		end     error
		want    int // calls of flush
	}{
		{"a flushed part", "part", true, io.ErrNoProgress, 1},
		{"a flushed header", "", true, io.ErrNoProgress, 1},
		{"a part in the buffer", "part", false, io.ErrNoProgress, 0},
		{"a whole body", "whole", true, io.EOF, 0}, // the server flushes it
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := New(1 << 20)
			r := join(t, s)
			defer r.Close()
			write(t, s, []byte(tt.body))
			if tt.flushed {
				s.Flush()
			}
			want := tt.end
			if want == io.EOF {
				want = s.Close()
			} else {
				s.CloseWithError(want)
			}
			flushes := 0
			n, err := r.CopyTo(t.Context(), io.Discard, func() error {
				flushes++
				return nil
			})
			if n != int64(len(tt.body)) || err != want || flushes != tt.want {
				t.Errorf("CopyTo = %d, %v with %d flushes, want %v with %d", n, err, flushes, want, tt.want)
			}
		})
	}
}

func TestReader_CopyToErrors(t *testing.T) {
	broken := errors.New("broken")
	s := New(10)
	write(t, s, []byte("abc"))
	r := join(t, s)
	defer r.Close()
	if n, err := r.CopyTo(t.Context(), io.Discard, func() error { return broken }); n != 3 || err != broken {
		t.Errorf("CopyTo = %d, %v, want flush's error", n, err)
	}
	write(t, s, []byte("abc"))
	if n, err := r.CopyTo(t.Context(), shortWriter{}, nil); n != 2 || err != io.ErrShortWrite {
		t.Errorf("CopyTo = %d, %v, want ErrShortWrite", n, err)
	}
}

// FuzzSpool compares a schedule of writes, joins, reads and leaves with a plain buffer.
func FuzzSpool(f *testing.F) {
	f.Add(int64(0), []byte{1, 0, 9, 2, 0, 9, 2, 3})
	f.Add(int64(10_000), []byte{1, 0, 200, 1, 2, 2, 0, 255, 2, 3, 2, 4})
	f.Add(int64(100_000), []byte{0, 255, 1, 0, 255, 1, 2, 2, 2, 3, 5})
	f.Fuzz(func(t *testing.T, limit int64, ops []byte) {
		limit %= 1 << 20
		if len(ops) > 200 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			type reading struct {
				r   *Reader
				got []byte
			}
			s := New(limit)
			var want []byte // the bytes of all Writes so far
			var readings []*reading
			work := make(chan []byte)
			done := make(chan struct{})
			var failed error // Write's; read after done
			go func() {
				defer close(done)
				for p := range work {
					if _, err := s.Write(p); err != nil {
						failed = err
						for range work { // a writer that ignores errors
						}
						return
					}
				}
				if err := s.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
			}()
			step := func(rd *reading) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
				defer cancel()
				b, err := rd.r.Next(ctx)
				if err != nil && err != context.DeadlineExceeded && err != io.EOF {
					t.Fatalf("Next = %v", err)
				}
				rd.got = append(rd.got, b...)
				if !bytes.HasPrefix(want, rd.got) {
					t.Fatalf("a reader's bytes differ within the first %d", len(rd.got))
				}
			}
			for len(ops) > 0 {
				op := ops[0]
				ops = ops[1:]
				which := int(op / 6)
				switch op % 6 {
				case 0: // write
					n := 1
					if len(ops) > 0 {
						n, ops = int(ops[0])*300, ops[1:]
					}
					p := body(n)
					synctest.Wait()
					select {
					case work <- p:
						want = append(want, p...)
					default: // the writer waits for a reader
					}
				case 1: // join
					if r, ok := s.NewReader(); ok {
						readings = append(readings, &reading{r: r})
					} else if !s.Overflowed() {
						t.Fatal("cannot join within the limit")
					}
				case 2, 3: // read
					if len(readings) > 0 {
						step(readings[which%len(readings)])
					}
				case 4: // leave
					if len(readings) > 0 {
						i := which % len(readings)
						readings[i].r.Close()
						readings = append(readings[:i], readings[i+1:]...)
					}
				case 5: // all read on
					for _, rd := range readings {
						step(rd)
					}
				}
				synctest.Wait()
				s.mu.Lock()
				kept := s.kept
				s.mu.Unlock()
				if bound := max(0, limit) + maxChunk; kept > bound || !s.Overflowed() && kept > max(0, limit) {
					t.Fatalf("%d bytes kept, want at most %d", kept, bound)
				}
			}
			close(work)
			var group sync.WaitGroup
			for _, rd := range readings {
				group.Go(func() {
					defer rd.r.Close()
					var rest bytes.Buffer
					_, err := rd.r.WriteTo(&rest)
					if got := append(rd.got, rest.Bytes()...); err != nil || !bytes.Equal(got, want) {
						t.Errorf("a reader has %d bytes and %v, want all %d", len(got), err, len(want))
					}
				})
			}
			group.Wait()
			<-done
			switch b, ok := whole(s); {
			case failed != nil && failed != ErrNoReaders:
				t.Errorf("Write = %v", failed)
			case failed == nil && ok != (int64(len(want)) <= max(0, limit)):
				t.Errorf("%d bytes, limit %d: Body says %v", len(want), limit, ok)
			case ok && !bytes.Equal(b, want):
				t.Error("Body differs")
			case failed != nil && ok:
				t.Error("Body of a body whose Write failed")
			}
		})
	})
}

// The floor is one copy into a slice of the right size.
func BenchmarkSpool(b *testing.B) {
	p := body(32 << 10)
	const pieces = 32 // 1 MiB
	b.Run("floor", func(b *testing.B) {
		b.SetBytes(pieces * int64(len(p)))
		b.ReportAllocs()
		for b.Loop() {
			buf := make([]byte, 0, pieces*len(p))
			for range pieces {
				buf = append(buf, p...)
			}
			io.Discard.Write(buf)
		}
	})
	for name, readers := range map[string]int{"1 reader": 1, "100 readers": 100} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(pieces * int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				s := New(1 << 30)
				var group sync.WaitGroup
				for range readers {
					r, _ := s.NewReader()
					group.Go(func() {
						defer r.Close()
						r.WriteTo(io.Discard)
					})
				}
				for range pieces {
					s.Write(p)
				}
				s.Close()
				group.Wait()
			}
		})
	}
}

// Readers returns the number of readers that have not been closed.
func (s *Spool) Readers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.readers)
}

func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	return r.CopyTo(context.Background(), w, nil)
}

func (r *Reader) Next(ctx context.Context) ([]byte, error) {
	return r.next(ctx, nil, nil)
}

// A flush or a Context that does not return ends its own reading alone.
func TestReader_UserCodeFails(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("user code") }, "Goexit": runtime.Goexit} {
		for where, read := range map[string]func(r *Reader){
			"flush":   func(r *Reader) { r.CopyTo(context.Background(), io.Discard, func() error { fail(); return nil }) },
			"context": func(r *Reader) { r.CopyTo(failingContext{context.Background(), fail}, io.Discard, nil) },
		} {
			t.Run(name+" of "+where, func(t *testing.T) {
				s := New(1 << 20)
				failing, _ := s.NewReader()
				other, _ := s.NewReader()
				s.Write([]byte("page"))
				var wg sync.WaitGroup
				wg.Go(func() {
					defer func() { recover() }()
					defer failing.Close()
					read(failing)
				})
				wg.Wait()
				s.Close()
				var got strings.Builder
				if _, err := other.CopyTo(context.Background(), &got, nil); got.String() != "page" || err != nil {
					t.Errorf("another reader got %q, %v", &got, err)
				}
			})
		}
	}
}

type failingContext struct {
	context.Context
	fail func()
}

func (c failingContext) Done() <-chan struct{} { c.fail(); return nil }
