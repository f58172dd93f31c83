package httpcache

import (
	"maps"
	"reflect"
	"testing"
)

// With the removed entries the header is as before: a handler goes on with it after an interim response.
func TestHidden_Remove(t *testing.T) {
	h := header("x-secret", "1", "Trailer:X-Secret", "2", "Trailer", "X-Secret, X-Sum", "X-Keep", "3")
	before := h.Clone()
	removed := Hidden{"X-Secret"}.Remove(h)
	if want := header("Trailer", "X-Sum", "X-Keep", "3"); !reflect.DeepEqual(h, want) {
		t.Errorf("%v stays, want %v", h, want)
	}
	if again := (Hidden{"X-Secret"}).Remove(h); again != nil {
		t.Errorf("a second Remove has changed %v", again)
	}
	if maps.Copy(h, removed); !reflect.DeepEqual(h, before) {
		t.Errorf("with the removed entries %v, want %v", h, before)
	}
}
