package zklock

import (
	"strings"
	"testing"
	"time"
)

func FuzzValue(f *testing.F) {
	f.Add("token", int64(time.Second))
	f.Add("t", int64(1))
	f.Add("t", int64(1<<63-1))
	f.Fuzz(func(t *testing.T, token string, length int64) {
		if length <= 0 {
			return
		}
		v := value{token, time.Duration(length)}
		got, ok := decode(v.encode())
		if !ok {
			return
		}
		if got.length < v.length || got.length-v.length >= time.Millisecond {
			t.Fatalf("a length of %v is announced as %v, want it rounded up to milliseconds", v.length, got.length)
		}
		if again, ok := decode(got.encode()); !ok || again != got {
			t.Fatalf("%+v became %+v, %v", got, again, ok)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"token 5000", "", " ", "x", "x 0", "x -1", "x 1 2", " 1", "x 9223372036855", "x 99999999999999999999", strings.Repeat("x", maxToken+1) + " 1"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, ok := decode(b); ok && (v.token == "" || len(v.token) > maxToken || v.length <= 0) {
			t.Fatalf("%q is taken for %+v", b, v)
		}
	})
}

func TestValue_OfALease(t *testing.T) {
	for _, length := range []time.Duration{1, time.Millisecond, time.Millisecond + 1, time.Hour, 1<<63 - 1} {
		if v, ok := decode(value{"token", length}.encode()); !ok || v.token != "token" || v.length < length {
			t.Errorf("a lease of %v is announced as %+v, %v", length, v, ok)
		}
	}
}
