package adapter

import "sync/atomic"

const (
	// firstPiece is how many keys are asked for while nothing is known of the values' size:
	// 16 of a megabyte each come in time on a line of 60 MB/s.
	firstPiece = 16
	// mostPiece is how many at most, although those before were small or not there.
	mostPiece = 256
	// pieceBytes is how long a piece's reply is to be: a small part of a second on
	// any line that is worth a cache.
	pieceBytes = 1 << 20
)

// Pieces says for how many keys of a long list an engine is asked at a time. What was
// answered is with the caller, and is no outage, while the rest is on its way. The zero
// Pieces know nothing of the values. They are safe for concurrent use.
type Pieces struct {
	size atomic.Int64 // of a value in the last piece, in bytes, and 1; 0: there was none
}

// Next returns for how many keys the engine is asked next.
func (p *Pieces) Next() int {
	size := p.size.Load()
	if size == 0 {
		return firstPiece
	}
	return int(min(mostPiece, max(1, pieceBytes/size)))
}

// Came takes that the engine has answered for so many keys with so many bytes.
func (p *Pieces) Came(keys, bytes int) {
	p.size.Store(int64(bytes/max(1, keys)) + 1)
}

// Late takes that the answer for so many keys has not come. The next piece is a quarter, since
// it may be that the values have grown: else each list would wait for as much, and in vain.
func (p *Pieces) Late(keys int) {
	p.size.Store(int64(4*pieceBytes/max(1, keys)) + 1)
}
