package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"reflect"
	"testing"
	"time"
)

// sampleEntries has every kind, and every field at zero, at its usual size and
// at its largest.
func sampleEntries() map[string]Entry {
	return map[string]Entry{
		"zero":      {},
		"value":     {Kind: KindValue, Value: []byte("v"), Epoch: 1, TTL: time.Minute},
		"no bytes":  {Kind: KindValue, Value: []byte{}, Epoch: 2, TTL: time.Minute},
		"not found": {Kind: KindNotFound, Epoch: 3, TTL: time.Second, StaleIfError: time.Hour},
		"failure":   {Kind: KindNone, Epoch: 4, Failures: 7, RetryAge: time.Second, Failure: "origin: 503"},
		"all fields": {
			Kind: KindValue, Value: bytes.Repeat([]byte{0, 0xff, 'B', 'W', 1}, 40), Epoch: 1_760_000_000_000_000,
			Age: 1500 * time.Millisecond, TTL: time.Minute, StaleWhileRevalidate: time.Hour, StaleIfError: 24 * time.Hour, Keep: 48 * time.Hour,
			BuildTime: 42 * time.Millisecond, Failures: 3, RetryAge: 2 * time.Minute, Failure: "a failure\x00with bytes",
		},
		"largest": {
			Kind: KindValue, Value: []byte("x"), Epoch: math.MaxUint64,
			Age: math.MaxInt64, TTL: math.MaxInt64, StaleWhileRevalidate: math.MaxInt64, StaleIfError: math.MaxInt64, Keep: math.MaxInt64,
			BuildTime: math.MaxInt64, Failures: math.MaxUint32, RetryAge: math.MaxInt64, Failure: "f",
		},
	}
}

func encode(e Entry) []byte {
	b, _ := e.AppendBinary(nil)
	return b
}

// seal gives data the magic and the checksum of an entry, so that a decoder
// looks at the rest.
func seal(data []byte) []byte {
	data = bytes.Clone(data)
	for len(data) < entryHeader {
		data = append(data, 0)
	}
	copy(data, entryMagic)
	sum := data[len(entryMagic):]
	binary.BigEndian.PutUint32(sum, crc32.Checksum(sum[4:], castagnoli))
	return data
}

func TestEntry_RoundTrip(t *testing.T) {
	for name, want := range sampleEntries() {
		t.Run(name, func(t *testing.T) {
			prefix := []byte("before")
			data, err := want.AppendBinary(prefix)
			if err != nil || !bytes.HasPrefix(data, prefix) {
				t.Fatalf("AppendBinary = %q, %v", data, err)
			}
			var got Entry
			if err := got.UnmarshalBinary(data[len(prefix):]); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestEntry_EncodesOnlyWhatItsKindHolds(t *testing.T) {
	for _, kind := range []EntryKind{KindNone, KindNotFound} {
		var got Entry
		if err := got.UnmarshalBinary(encode(Entry{Kind: kind, Value: []byte("left over"), Epoch: 1})); err != nil {
			t.Errorf("kind %d with a value: %v", kind, err)
		}
		if got.Value != nil {
			t.Errorf("kind %d: Value = %q, want nil", kind, got.Value)
		}
	}
	var got Entry
	if err := got.UnmarshalBinary(encode(Entry{Kind: KindValue, Age: -1, TTL: -2, StaleIfError: math.MinInt64, Keep: -4, Failures: 1, RetryAge: -3})); err != nil {
		t.Fatal(err)
	}
	if got.Age != 0 || got.TTL != 0 || got.StaleIfError != 0 || got.Keep != 0 || got.RetryAge != 0 {
		t.Errorf("negative durations decoded as %+v, want zeros", got)
	}
}

// TestEntry_DamageIsFound cuts every sample at every length and flips each of
// its bits.
func TestEntry_DamageIsFound(t *testing.T) {
	for name, e := range sampleEntries() {
		t.Run(name, func(t *testing.T) {
			data := encode(e)
			check := func(what string, at int, damaged []byte) {
				t.Helper()
				before := Entry{Epoch: 99}
				got := before
				if err := got.UnmarshalBinary(damaged); !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s %d: err = %v, entry %+v, want ErrCorrupt", what, at, err, got)
				}
				if !reflect.DeepEqual(got, before) {
					t.Errorf("%s %d: the receiver was changed to %+v", what, at, got)
				}
			}
			for n := range len(data) {
				check("cut to", n, data[:n])
			}
			for bit := range 8 * len(data) {
				damaged := bytes.Clone(data)
				damaged[bit/8] ^= 1 << (bit % 8)
				check("flipped bit", bit, damaged)
			}
			check("one byte more:", len(data), append(bytes.Clone(data), 0))
		})
	}
}

// TestEntry_SealedNonsense decodes headers whose checksum is right, which only
// a bug or an attacker writes.
func TestEntry_SealedNonsense(t *testing.T) {
	header := encode(Entry{Kind: KindValue, Epoch: 1})[:entryHeader]
	zeros := func(n int) []byte { return make([]byte, n) }
	uvarint := func(v uint64) []byte { return binary.AppendUvarint(nil, v) }
	with := func(parts ...[]byte) []byte { return seal(append(bytes.Clone(header), bytes.Join(parts, nil)...)) }

	for name, data := range map[string][]byte{
		"no numbers":                with(),
		"nine numbers":              with(zeros(9)),
		"age above int64":           with(uvarint(1<<63), zeros(9)),
		"age of eleven bytes":       with(bytes.Repeat([]byte{0xff}, 10), []byte{1}, zeros(9)),
		"age that never ends":       with(bytes.Repeat([]byte{0x80}, 40)),
		"age not in shortest form":  with([]byte{0x80, 0}, zeros(9)),
		"failures above uint32":     with(zeros(7), uvarint(1<<32), zeros(2)),
		"failure longer than data":  with(zeros(9), uvarint(4), []byte("abc")),
		"failure of largest length": with(zeros(9), uvarint(math.MaxInt64), []byte("abc")),
		"failure length above int":  with(zeros(9), uvarint(math.MaxUint64), []byte("abc")),
		"unknown kind":              seal(append(append([]byte(entryMagic), 0, 0, 0, 0, 4), zeros(18)...)),
		"value in kind none":        seal(append(append([]byte(entryMagic), 0, 0, 0, 0, 0), zeros(19)...)),
	} {
		var e Entry
		if err := e.UnmarshalBinary(data); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: err = %v, entry %+v, want ErrCorrupt", name, err, e)
		}
	}
	var e Entry
	if err := e.UnmarshalBinary(with(zeros(10))); err != nil {
		t.Errorf("the same header with ten numbers: %v", err)
	}
}

func TestEntry_ValueSharesMemoryWithData(t *testing.T) {
	data := append(encode(Entry{Kind: KindValue, Value: []byte("old"), Epoch: 1}), "behind"...)
	end := len(data) - len("behind")
	var e Entry
	if err := e.UnmarshalBinary(data[:end]); err != nil {
		t.Fatal(err)
	}
	copy(data[end-3:], "new")
	if string(e.Value) != "new" {
		t.Errorf("Value = %q, want %q: decoding is documented not to copy", e.Value, "new")
	}
	_ = append(e.Value, "!!!!!!"...)
	if got := string(data[end:]); got != "behind" {
		t.Errorf("an append to Value wrote into the buffer: %q", got)
	}
}

func TestEntry_Life(t *testing.T) {
	const forever = time.Duration(math.MaxInt64)
	for _, tt := range []struct {
		name string
		e    Entry
		want time.Duration
	}{
		{"zero", Entry{}, 0},
		{"fresh", Entry{Kind: KindValue, TTL: 10, Age: 3}, 7},
		{"over", Entry{Kind: KindValue, TTL: 10, Age: 10}, 0},
		{"long over", Entry{Kind: KindValue, TTL: 10, Age: forever}, 0},
		{"the longer window counts", Entry{Kind: KindValue, TTL: 10, StaleWhileRevalidate: 5, StaleIfError: 20, Age: 3}, 27},
		{"for ever", Entry{Kind: KindValue, TTL: 10, StaleIfError: forever, Age: 3}, forever - 3},
		{"kept beyond the windows", Entry{Kind: KindValue, TTL: 10, StaleIfError: 20, Keep: 30, Age: 3}, 37},
		{"negative windows are none", Entry{Kind: KindValue, TTL: 10, StaleWhileRevalidate: -5, StaleIfError: -1}, 10},
		{"negative TTL is none", Entry{Kind: KindValue, TTL: -10, StaleIfError: 4}, 4},
		{"negative age is none", Entry{Kind: KindValue, TTL: forever, Age: -1}, forever},
		{"a failure alone", Entry{Failures: 1, RetryAge: 8, Age: 3}, 5 + FailureMemory},
		{"TTL without a kind", Entry{TTL: 10}, 0},
		{"a retry after the windows", Entry{Kind: KindValue, TTL: 2, Failures: 1, RetryAge: 8}, 8 + FailureMemory},
		{"a retry time without failures", Entry{Kind: KindValue, TTL: 2, RetryAge: 8}, 2},
	} {
		if got := tt.e.Life(); got != tt.want {
			t.Errorf("%s: Life() = %d, want %d", tt.name, got, tt.want)
		}
	}
}

// FuzzEntry decodes arbitrary bytes, with and without a right checksum: what
// decodes is what would be encoded, byte for byte.
func FuzzEntry(f *testing.F) {
	for _, e := range sampleEntries() {
		f.Add(encode(e), false)
		f.Add(encode(e), true)
	}
	f.Add([]byte(entryMagic), true)
	f.Add(bytes.Repeat([]byte{0xff}, 64), true)
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		if sealed {
			data = seal(data)
		}
		before := Entry{Epoch: 99}
		e := before
		if err := e.UnmarshalBinary(data); err != nil {
			if !errors.Is(err, ErrCorrupt) || !reflect.DeepEqual(e, before) {
				t.Fatalf("err = %v, entry %+v, want ErrCorrupt and no change", err, e)
			}
			return
		}
		if got := encode(e); !bytes.Equal(got, data) {
			t.Fatalf("decoded %x as %+v, which encodes as %x", data, e, got)
		}
	})
}

// FuzzEntry_RoundTrip encodes arbitrary fields: what is encoded decodes, to
// the same life.
func FuzzEntry_RoundTrip(f *testing.F) {
	f.Add(uint8(1), []byte("v"), uint64(1), int64(0), int64(time.Minute), int64(0), int64(time.Hour), int64(2*time.Hour), int64(1), uint32(0), int64(0), "")
	f.Add(uint8(2), []byte("v"), uint64(math.MaxUint64), int64(-1), int64(-1), int64(math.MinInt64), int64(math.MaxInt64), int64(-1), int64(1), uint32(9), int64(5), "f")
	f.Fuzz(func(t *testing.T, kind uint8, value []byte, epoch uint64, age, ttl, swr, sie, keep, build int64, failures uint32, retry int64, failure string) {
		e := Entry{
			Kind: EntryKind(kind % 3), Value: value, Epoch: epoch,
			Age: time.Duration(age), TTL: time.Duration(ttl),
			StaleWhileRevalidate: time.Duration(swr), StaleIfError: time.Duration(sie), Keep: time.Duration(keep), BuildTime: time.Duration(build),
			Failures: failures, RetryAge: time.Duration(retry), Failure: failure,
		}
		var got Entry
		if err := got.UnmarshalBinary(encode(e)); err != nil {
			t.Fatalf("%+v: %v", e, err)
		}
		if got.Life() != e.Life() || got.Life() < 0 {
			t.Fatalf("%+v: Life() = %v, decoded %v", e, e.Life(), got.Life())
		}
		if e.Kind == KindValue && !bytes.Equal(got.Value, value) || got.Epoch != epoch || got.Kind != e.Kind || got.Failure != failure || got.Failures != failures || got.Keep != max(0, e.Keep) {
			t.Fatalf("got %+v, want %+v", got, e)
		}
	})
}
