package adapter

import "sync/atomic"

const (
	// firstPiece is the number of keys at first: 16 values of a megabyte arrive in time at 60 MB/s.
	firstPiece = 16
	// mostPiece is the largest number of keys per request, however small the values were.
	mostPiece = 256
	// pieceBytes is the wanted size of a reply: a small part of a second on any line worth a cache.
	pieceBytes = 1 << 20
)

// Pieces splits a long list of keys into requests to an engine. The caller has the answers of the
// earlier pieces while the rest is on its way, so a slow list is no outage. The zero Pieces know
// nothing of the values. They are safe for concurrent use.
type Pieces struct {
	size atomic.Int64 // mean bytes of a value in the last piece, plus 1; 0 before the first piece
}

// Next returns the number of keys for the next request.
func (p *Pieces) Next() int {
	size := p.size.Load()
	if size == 0 {
		return firstPiece
	}
	return int(min(mostPiece, max(1, pieceBytes/size)))
}

// Came records an answer of the engine: the number of keys, and the bytes of the answer.
func (p *Pieces) Came(keys, bytes int) {
	p.size.Store(int64(bytes/max(1, keys)) + 1)
}

// Late records a piece without an answer. The next piece is a quarter of it: the values may have
// grown, and every list would wait for as much in vain.
func (p *Pieces) Late(keys int) {
	p.size.Store(int64(4*pieceBytes/max(1, keys)) + 1)
}
