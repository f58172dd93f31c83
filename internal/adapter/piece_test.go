package adapter

import "testing"

func TestPieces(t *testing.T) {
	var p Pieces
	if got := p.Next(); got != 16 {
		t.Errorf("%d keys at first, want 16", got)
	}
	for _, c := range []struct{ keys, bytes, want int }{
		{128, 0, 256},
		{128, 128 * 100, 256},
		{128, 128 * 50_000, 20},
		{20, 20 * 50_000, 20},
		{1, 100 << 20, 1},
		{3, 1, 256},
	} {
		p.Came(c.keys, c.bytes)
		if got := p.Next(); got != c.want {
			t.Errorf("%d keys after %d with %d bytes, want %d", got, c.keys, c.bytes, c.want)
		}
	}
	p.Came(100, 100)
	for _, want := range []int{63, 15, 3, 1, 1} {
		if p.Late(p.Next()); p.Next() != want {
			t.Errorf("%d keys after an answer that was late, want %d", p.Next(), want)
		}
	}
}
