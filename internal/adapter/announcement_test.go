package adapter

import (
	"math"
	"testing"
	"time"
)

func TestMillis_NeverShorter(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second + 1: 1001, math.MaxInt64: math.MaxInt64/1_000_000 + 1,
	} {
		if got := Millis(d); got != want {
			t.Errorf("Millis(%v) = %d, want %d", d, got, want)
		}
	}
}

func FuzzAnnouncement(f *testing.F) {
	f.Add("token", int64(time.Second), uint64(0))
	f.Add("", int64(1), uint64(1))
	f.Add("token", int64(math.MaxInt64), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, token string, length int64, renewals uint64) {
		a := Announcement{Token: token, Length: time.Duration(length), Renewals: renewals}
		got, ok := DecodeAnnouncement(a.Encode())
		if !ok {
			return
		}
		if got.Length < a.Length || got.Length >= a.Length+time.Millisecond {
			t.Fatalf("a length of %v is announced as %v, want it rounded up to milliseconds", a.Length, got.Length)
		}
		if again, ok := DecodeAnnouncement(got.Encode()); !ok || again != got {
			t.Fatalf("%+v became %+v, %v", got, again, ok)
		}
	})
}

func FuzzDecodeAnnouncement(f *testing.F) {
	f.Add([]byte("token 5000 2"))
	f.Add([]byte("token 9223372036855 0"))
	f.Add([]byte("  "))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := DecodeAnnouncement(b)
		if ok && (a.Token == "" || a.Length <= 0) {
			t.Fatalf("%q is taken for %+v", b, a)
		}
	})
}
