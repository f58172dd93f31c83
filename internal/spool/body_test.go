package spool

import (
	"bytes"
	"io"
	"runtime"
	"testing"
	"testing/iotest"
)

func TestBody(t *testing.T) {
	for _, n := range []int{0, 1, minChunk, minChunk + 1, 1<<20 + 7} {
		want := body(n)
		s := New(int64(2*n + 1))
		write(t, s, want)
		s.Close()
		b, ok := s.Body()
		if !ok || b.Len() != int64(n) || !bytes.Equal(b.Append(nil), want) {
			t.Fatalf("%d: Body of %d bytes, %v", n, b.Len(), ok)
		}
		if err := iotest.TestReader(b.Reader(), want); err != nil {
			t.Errorf("%d: %v", n, err)
		}
		var got bytes.Buffer
		if m, err := b.WriteTo(&got); m != int64(n) || err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d: WriteTo = %d, %v", n, m, err)
		}
		if one := BodyOf(want); one.Len() != int64(n) || !bytes.Equal(one.Append(nil), want) {
			t.Errorf("%d: BodyOf has %d bytes", n, one.Len())
		}
		for _, p := range b {
			if cap(p) > len(p) {
				t.Errorf("%d: a piece of %d bytes holds %d", n, len(p), cap(p))
			}
		}
	}
	if n, err := BodyOf([]byte("abc")).WriteTo(shortWriter{}); n != 2 || err != io.ErrShortWrite {
		t.Errorf("WriteTo = %d, %v, want ErrShortWrite", n, err)
	}
}

// Body does not copy a complete body, even while readers are at its beginning.
func TestBody_IsNoCopy(t *testing.T) {
	const n = 32 << 20
	s := New(n)
	r := join(t, s)
	defer r.Close()
	p := make([]byte, 64<<10)
	for range n / len(p) {
		write(t, s, p)
	}
	s.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b, ok := s.Body()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; !ok || b.Len() != n || grown > maxChunk+64<<10 {
		t.Errorf("Body = %d bytes, %v, and allocated %d", b.Len(), ok, grown)
	}
	runtime.KeepAlive(s)
}

// A body in one Write, or with its length, is kept in its first memory. A wrong length costs no more.
func TestBody_InOnePiece(t *testing.T) {
	for _, c := range []struct {
		expected int64
		writes   []int
		pieces   int // of the collected body
	}{
		{0, []int{minFirst}, 1},
		{-1, []int{maxChunk}, 1},
		{1000, []int{100, 900}, 1},
		{1000, []int{100, 100}, 1},
		{maxExpected, []int{1, maxExpected - 1}, 1},
		{maxExpected + 1, []int{1, minChunk - 1}, 1}, // not believed
		{10, []int{100}, 2},                          // more than announced
		{1, []int{1, 5000, 100}, 3},
		{0, []int{minFirst, 1}, 2},
	} {
		s := New(1 << 20)
		s.Expect(c.expected)
		var want []byte
		for i, n := range c.writes {
			p := bytes.Repeat([]byte{byte('a' + i)}, n)
			write(t, s, p)
			want = append(want, p...)
		}
		pieces, kept := 0, 0
		for k := s.head; k != nil; k = k.next {
			pieces, kept = pieces+1, kept+k.size
		}
		if most := max(len(want), int(min(c.expected, maxExpected)), minChunk); pieces != c.pieces || kept > 2*most+minChunk {
			t.Errorf("%d expected, %v written: %d pieces of %d bytes", c.expected, c.writes, pieces, kept)
		}
		s.Close()
		var body Body
		ok := false
		copied := testing.AllocsPerRun(10, func() { body, ok = s.Body() })
		if !ok || !bytes.Equal(body.Append(nil), want) {
			t.Errorf("%d expected, %v written: not the body", c.expected, c.writes)
		}
		if whole := kept == len(want) && pieces == 1; whole && copied > 1 { // the Body itself
			t.Errorf("%d expected, %v written: %v allocations", c.expected, c.writes, copied)
		}
	}
}
