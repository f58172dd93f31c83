package adapter

const (
	// firstPiece is how many keys are asked for where nothing is known of their values.
	firstPiece = 128
	// mostPiece is how many at most, although those before were small or not there.
	mostPiece = 256
	// pieceBytes is how long a piece's reply is to be: a small part of a second on
	// any line that is worth a cache.
	pieceBytes = 1 << 20
)

// Piece returns for how many keys of a long list an engine is to be asked next, when
// it has just answered for so many with so many bytes; for keys 0, at first. What
// was answered is with the caller, and is no outage, while the rest is on its way.
func Piece(keys, bytes int) int {
	if keys == 0 {
		return firstPiece
	}
	return min(mostPiece, max(1, pieceBytes/max(1, bytes/keys)))
}
