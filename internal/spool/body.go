package spool

import (
	"io"
	"slices"
)

// A Body is an immutable, complete body in pieces: joining them would need the memory twice.
type Body [][]byte

// BodyOf returns b as a Body, which shares its memory.
func BodyOf(b []byte) Body {
	if len(b) == 0 {
		return nil
	}
	return Body{slices.Clip(b)}
}

// Len returns the number of bytes.
func (b Body) Len() int64 {
	var n int64
	for _, p := range b {
		n += int64(len(p))
	}
	return n
}

// Append appends the bytes to dst.
func (b Body) Append(dst []byte) []byte {
	for _, p := range b {
		dst = append(dst, p...)
	}
	return dst
}

// WriteTo implements [io.WriterTo].
func (b Body) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for _, p := range b {
		n, err := w.Write(p)
		total += int64(n)
		if err == nil && n < len(p) {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// Reader returns a reader of all bytes.
func (b Body) Reader() io.ReadSeeker { return io.NewSectionReader(b, 0, b.Len()) }

// ReadAt implements [io.ReaderAt].
func (b Body) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for _, piece := range b {
		if off >= int64(len(piece)) {
			off -= int64(len(piece))
			continue
		}
		n += copy(p[n:], piece[off:])
		off = 0
		if n == len(p) {
			return n, nil
		}
	}
	return n, io.EOF
}

// joined is the size up to which a body is kept in one piece: each piece costs a system call to send.
const joined = 256 << 10

// Body returns the body if it is complete and within the limit. It shares the readers' memory,
// except for a small body, and for the last piece: the unused part of a chunk is not worth keeping.
func (s *Spool) Body() (Body, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != io.EOF || s.overflow {
		return nil, false
	}
	var b Body
	for c := s.head; c != nil; c = c.next {
		switch {
		case c.n == c.size:
			b = append(b, c.buf)
		case c.n > 0:
			b = append(b, slices.Clip(slices.Clone(c.buf[:c.n])))
		}
	}
	if n := b.Len(); len(b) > 1 && n <= joined {
		return BodyOf(b.Append(make([]byte, 0, n))), true
	}
	return b, true
}
