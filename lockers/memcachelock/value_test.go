package memcachelock

import (
	"testing"
	"time"
)

func TestExpiration_OutlivesTheLease(t *testing.T) {
	for _, c := range []struct {
		ttl  time.Duration
		want int32
	}{
		{1, 2},
		{50 * time.Millisecond, 2},
		{time.Second, 2},
		{time.Second + 1, 3},
		{1500 * time.Millisecond, 3},
		{maxTTL, 30 * 24 * 60 * 60},
	} {
		if got := expiration(c.ttl); got != c.want {
			t.Errorf("expiration(%v) = %d, want %d", c.ttl, got, c.want)
		}
	}
}

func FuzzValue(f *testing.F) {
	f.Add("token", int64(time.Second), uint64(0))
	f.Add("", int64(1), uint64(1))
	f.Fuzz(func(t *testing.T, token string, length int64, renewals uint64) {
		v := value{token: token, length: time.Duration(length), renewals: renewals}
		got, ok := decode(v.encode())
		if !ok {
			return
		}
		if got.length < v.length || got.length >= v.length+time.Millisecond {
			t.Fatalf("a length of %v is announced as %v, want it rounded up to milliseconds", v.length, got.length)
		}
		if again, ok := decode(got.encode()); !ok || again != got {
			t.Fatalf("%+v became %+v, %v", got, again, ok)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("token 5000 2"))
	f.Add([]byte("  "))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, ok := decode(b)
		if ok && (v.token == "" || v.length <= 0) {
			t.Fatalf("%q is taken for %+v", b, v)
		}
	})
}
