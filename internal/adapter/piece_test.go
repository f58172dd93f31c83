package adapter

import "testing"

func TestPiece(t *testing.T) {
	for _, c := range []struct{ keys, bytes, want int }{
		{0, 0, 128},
		{128, 0, 256},
		{128, 128 * 100, 256},
		{128, 128 * 50_000, 20},
		{20, 20 * 50_000, 20},
		{1, 100 << 20, 1},
		{3, 1, 256},
	} {
		if got := Piece(c.keys, c.bytes); got != c.want {
			t.Errorf("Piece(%d, %d) = %d, want %d", c.keys, c.bytes, got, c.want)
		}
	}
}
