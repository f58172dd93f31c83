package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// sampleEntries covers every kind, with each field at zero, at its usual size and at its largest.
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
			BuildTime: 42 * time.Millisecond, Sweep: 9, Failures: 3, RetryAge: 2 * time.Minute, Failure: "a failure\x00with bytes",
			Validator: `"v1"`, Tags: []string{"a", "", "b c"},
		},
		"largest": {
			Kind: KindValue, Value: []byte("x"), Epoch: math.MaxUint64,
			Age: math.MaxInt64, TTL: math.MaxInt64, StaleWhileRevalidate: math.MaxInt64, StaleIfError: math.MaxInt64, Keep: math.MaxInt64,
			BuildTime: math.MaxInt64, Failures: math.MaxUint32, RetryAge: math.MaxInt64, Failure: "f",
		},
	}
}

const sampleKey = "the key"

func encode(e Entry) []byte { return e.Append(nil, sampleKey) }

// seal sets the magic and the checksum of an entry of sampleKey, so Decode reads the rest of data.
func seal(data []byte) []byte {
	data = bytes.Clone(data)
	for len(data) < entryPrefix {
		data = append(data, 0)
	}
	copy(data, entryMagic)
	sum := data[len(entryMagic):]
	binary.BigEndian.PutUint32(sum, entrySum(sampleKey, sum[4:]))
	return data
}

func TestEntry_RoundTrip(t *testing.T) {
	for name, want := range sampleEntries() {
		t.Run(name, func(t *testing.T) {
			prefix := []byte("before")
			data := want.Append(prefix, sampleKey)
			if !bytes.HasPrefix(data, prefix) {
				t.Fatalf("Append = %q", data)
			}
			var got Entry
			if err := got.Decode(sampleKey, data[len(prefix):]); err != nil {
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
		if err := got.Decode(sampleKey, encode(Entry{Kind: kind, Value: []byte("left over"), Epoch: 1})); err != nil {
			t.Errorf("kind %d with a value: %v", kind, err)
		}
		if got.Value != nil {
			t.Errorf("kind %d: Value = %q, want nil", kind, got.Value)
		}
	}
	var got Entry
	if err := got.Decode(sampleKey, encode(Entry{Kind: KindValue, Age: -1, TTL: -2, StaleIfError: math.MinInt64, Keep: -4, Failures: 1, RetryAge: -3})); err != nil {
		t.Fatal(err)
	}
	if got.Age != 0 || got.TTL != 0 || got.StaleIfError != 0 || got.Keep != 0 || got.RetryAge != 0 {
		t.Errorf("negative durations decoded as %+v, want zeros", got)
	}
}

// TestEntry_DamageIsFound cuts every sample at every length and flips each of its bits.
func TestEntry_DamageIsFound(t *testing.T) {
	for name, e := range sampleEntries() {
		t.Run(name, func(t *testing.T) {
			data := encode(e)
			check := func(what string, at int, damaged []byte) {
				t.Helper()
				before := Entry{Epoch: 99}
				got := before
				if err := got.Decode(sampleKey, damaged); !errors.Is(err, ErrCorrupt) {
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

// TestEntry_OfAnotherKey decodes the bytes of one key under another key: always a miss.
func TestEntry_OfAnotherKey(t *testing.T) {
	for name, e := range sampleEntries() {
		for _, key := range []string{"", "the kez", sampleKey + "\x00", strings.Repeat("k", 300)} {
			got := Entry{Epoch: 99}
			if err := got.Decode(key, encode(e)); !errors.Is(err, ErrCorrupt) || got.Epoch != 99 {
				t.Errorf("%s under %q: err = %v, entry %+v, want ErrCorrupt", name, key, err, got)
			}
			if err := got.Decode(key, e.Append(nil, key)); err != nil || !reflect.DeepEqual(got, e) {
				t.Errorf("%s under %q, its own: %+v, %v", name, key, got, err)
			}
		}
	}
}

// sealed is an entry with the header, and with the value "v" if kind has a value.
func sealed(kind EntryKind, header ...[]byte) []byte {
	all := bytes.Join(header, nil)
	data := append([]byte(entryMagic), 0, 0, 0, 0, byte(kind), 0, 0, 0, 0, 0, 0, 0, 1)
	data = append(binary.BigEndian.AppendUint32(data, uint32(len(all))), all...)
	if kind == KindValue {
		data = append(data, 'v')
	}
	return seal(data)
}

func zeros(n int) []byte             { return make([]byte, n) }
func uvarint(v uint64) []byte        { return binary.AppendUvarint(nil, v) }
func text(n uint64, s string) []byte { return append(uvarint(n), s...) }

// TestEntry_SealedNonsense decodes bad headers under a right checksum.
func TestEntry_SealedNonsense(t *testing.T) {
	whole := sealed(KindValue, zeros(12))
	for name, data := range map[string][]byte{
		"half a length of the header":  append(bytes.Clone(whole[:entryPrefix-2]), 0),
		"header longer than data":      seal(append(bytes.Clone(whole[:entryPrefix-4]), 0, 0, 0, 100, 0)),
		"header length above int":      seal(append(bytes.Clone(whole[:entryPrefix-4]), 255, 255, 255, 255, 0)),
		"age above int64":              sealed(KindValue, uvarint(1<<63)),
		"age of eleven bytes":          sealed(KindValue, bytes.Repeat([]byte{0xff}, 10), []byte{1}),
		"age that never ends":          sealed(KindValue, bytes.Repeat([]byte{0x80}, 40)),
		"age not in shortest form":     sealed(KindValue, []byte{0x80, 0}, zeros(9)),
		"failures above uint32":        sealed(KindValue, zeros(7), uvarint(1<<32), zeros(2)),
		"failure longer than header":   sealed(KindValue, zeros(9), text(4, "abc")),
		"failure of largest length":    sealed(KindValue, zeros(9), text(math.MaxInt64, "abc")),
		"failure length above int":     sealed(KindValue, zeros(9), text(math.MaxUint64, "abc")),
		"validator longer than header": sealed(KindValue, zeros(10), text(4, "abc")),
		"tag longer than header":       sealed(KindValue, zeros(11), uvarint(1), text(4, "abc")),
		"more tags than bytes":         sealed(KindValue, zeros(11), uvarint(1<<40), text(1, "a")),
		"unknown kind":                 sealed(KindUnelected+1, zeros(12)),
		"value in kind none":           seal(append(sealed(KindNone, zeros(12)), 'v')),
	} {
		var e Entry
		if err := e.Decode(sampleKey, data); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: err = %v, entry %+v, want ErrCorrupt", name, err, e)
		}
	}
}

// TestEntry_OtherVersions decodes headers with unknown fields, and headers without known fields.
func TestEntry_OtherVersions(t *testing.T) {
	want := Entry{Kind: KindValue, Value: []byte("v"), Epoch: 1, Age: 7}
	for name, header := range map[string][]byte{
		"as it is":     append(uvarint(7), zeros(11)...),
		"a field more": append(append(uvarint(7), zeros(11)...), text(3, "new")...),
		"without tags": append(uvarint(7), zeros(10)...),
		"age alone":    uvarint(7),
	} {
		var got Entry
		if err := got.Decode(sampleKey, sealed(KindValue, header)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	old := append([]byte("BW\x02"), encode(want)[3:]...)
	if err := new(Entry).Decode(sampleKey, old); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the second format: %v, want ErrCorrupt", err)
	}
}

func TestEntry_Fresh(t *testing.T) {
	for _, tt := range []struct {
		name string
		e    Entry
		want bool
	}{
		{"zero", Entry{}, false},
		{"below its TTL", Entry{Kind: KindValue, TTL: 10, Age: 9}, true},
		{"at its TTL", Entry{Kind: KindValue, TTL: 10, Age: 10, StaleWhileRevalidate: 5}, false},
		{"not found", Entry{Kind: KindNotFound, TTL: 10}, true},
		{"unshared", Entry{Kind: KindUnshared, TTL: 10}, true},
		{"a TTL without a kind", Entry{TTL: 10}, false},
		{"a failure whose next try is not due", Entry{Failures: 1, RetryAge: 8, Age: 7}, true},
		{"a failure whose next try is due", Entry{Failures: 1, RetryAge: 8, Age: 8}, false},
		{"a value that failures have outlived", Entry{Kind: KindValue, TTL: 10, Failures: 1, RetryAge: 8, Age: 9}, false},
	} {
		if got := tt.e.Fresh(); got != tt.want {
			t.Errorf("%s: Fresh() = %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestEntry_ValueSharesMemoryWithData(t *testing.T) {
	data := append(encode(Entry{Kind: KindValue, Value: []byte("old"), Epoch: 1}), "behind"...)
	end := len(data) - len("behind")
	var e Entry
	if err := e.Decode(sampleKey, data[:end]); err != nil {
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

// FuzzEntry decodes arbitrary bytes, with and without a right checksum. Decoded bytes encode to the
// same bytes, except under a header of another version.
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
		if err := e.Decode(sampleKey, data); err != nil {
			if !errors.Is(err, ErrCorrupt) || !reflect.DeepEqual(e, before) {
				t.Fatalf("err = %v, entry %+v, want ErrCorrupt and no change", err, e)
			}
			return
		}
		got := encode(e)
		// A header of another version has another length.
		if len(got) == len(data) && !bytes.Equal(got, data) {
			t.Fatalf("decoded %x as %+v, which encodes as %x", data, e, got)
		}
		var again Entry
		if err := again.Decode(sampleKey, got); err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("decoded %x as %+v, and its encoding as %+v, %v", data, e, again, err)
		}
	})
}

// FuzzEntry_RoundTrip encodes arbitrary fields: the entry decodes to the same life.
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
		if err := got.Decode(sampleKey, encode(e)); err != nil {
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
