package driver

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file is the entry: what a store keeps under a key, and the bytes that it has.

// An EntryKind says what an [Entry] holds.
type EntryKind uint8

const (
	// KindNone holds nothing: the zero Entry, or a record that rebuilds fail.
	KindNone EntryKind = iota
	// KindValue holds a value.
	KindValue
	// KindNotFound holds the knowledge that the thing does not exist.
	KindNotFound
	// KindUnshared stands for a value that is not in the store, because it was too
	// large, could not be encoded, was not taken, or has no life: each process
	// makes its own.
	KindUnshared
)

// An Entry is what a [Store] keeps under a key. All its times are durations on
// one axis, the age of its value, so that no two machines' clocks need agree.
type Entry struct {
	// Kind says what the entry holds.
	Kind EntryKind
	// Value is the encoded value, if Kind is KindValue.
	Value []byte
	// Epoch is the epoch under which the entry was committed.
	Epoch uint64

	// Age is how old the value is: at Commit as the rebuild gives it, from Get
	// and Claim with the time added that has passed since.
	Age time.Duration
	// TTL is the age at which the value stops being fresh.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL the value may be served while
	// a rebuild runs behind it (RFC 5861 section 3).
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL the value may be served because
	// rebuilds fail (RFC 5861 section 4).
	StaleIfError time.Duration
	// Keep is how long after TTL the value is kept at least, beyond its windows
	// too, for a rebuild to start from. It is not served for that.
	Keep time.Duration
	// BuildTime is how long the rebuild took.
	BuildTime time.Duration
	// Sweep is up to where the cache knew its log of invalidations when the
	// rebuild's load began: what was written there later counts against it.
	Sweep uint64

	// Failures counts the rebuilds that have failed in a row since the value
	// was built; 0 if the last one succeeded.
	Failures uint32
	// RetryAge is the age before which nobody tries again, if Failures > 0.
	RetryAge time.Duration
	// Failure is the last failure's text, if Failures > 0.
	Failure string

	// Validator is the source's own name for this version of the value, such as an
	// entity tag. It is empty if the source has none.
	Validator string
	// Tags are the names by which the value can be invalidated together with others.
	Tags []string
}

// Fresh reports whether the entry answers by itself: its value is below its TTL and the last
// rebuild succeeded, or rebuilds fail and the next try is not due.
func (e Entry) Fresh() bool {
	if e.Failures > 0 {
		return e.Age < e.RetryAge
	}
	return e.Kind != KindNone && e.Age < e.TTL
}

// FailureMemory is how long after a failed rebuild's next try is due the number
// of failures in a row is still known, so that the pauses can grow.
const FailureMemory = time.Minute

// Life returns how much longer the entry is of any use, and so has to be kept:
// until its last window closes, no rebuild starts from it, and its failures are
// forgotten.
func (e Entry) Life() time.Duration {
	var end time.Duration
	if e.Kind != KindNone {
		end = durations.Add(max(0, e.TTL), max(0, e.StaleWhileRevalidate, e.StaleIfError, e.Keep))
	}
	if e.Failures > 0 {
		end = max(end, durations.Add(max(0, e.RetryAge), FailureMemory))
	}
	return max(0, end-max(0, e.Age))
}

// An encoded entry is
//
//	"BW" version(1) | crc32c of the key and of all that follows, big endian(4) | kind(1) | epoch, big endian(8) |
//	length of the header, big endian(4) | header | value
//
// and its header is
//
//	uvarints: age, ttl, stale-while-revalidate, stale-if-error, keep, build time (ns), sweep, failures, retry age (ns) |
//	failure | validator | uvarint: number of tags | tags
//
// where a text is its length, as a uvarint, and its bytes. A decoder skips the rest of a header
// that is longer than it knows, and takes the fields that a shorter one lacks for zero: so a
// later version can add fields at the end.
//
// The checksum tells our bytes from foreign and damaged ones, and from the entry of another
// key, which a proxy that mixes replies up may give. It is no protection against somebody
// who can write to the store.
const (
	entryMagic  = "BW\x03"
	entryPrefix = len(entryMagic) + 4 + 1 + 8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entrySum is the checksum of an entry under the key, whose bytes behind the checksum are these.
func entrySum(key string, rest []byte) uint32 {
	// A conversion would copy the key: the table's function is not known to keep none of it.
	of := crc32.Checksum(unsafe.Slice(unsafe.StringData(key), len(key)), castagnoli)
	return crc32.Update(of, castagnoli, rest)
}

// Append appends the entry to b as it is stored under the key. Negative durations become 0, and
// Value is left out unless Kind is KindValue.
func (e Entry) Append(b []byte, key string) []byte {
	start := len(b)
	b = append(b, entryMagic...)
	b = append(b, 0, 0, 0, 0, byte(e.Kind))
	b = binary.BigEndian.AppendUint64(b, e.Epoch)
	b = append(b, 0, 0, 0, 0)
	b = e.appendHeader(b)
	header := b[start+entryPrefix:]
	binary.BigEndian.PutUint32(b[start+entryPrefix-4:], uint32(len(header)))
	if e.Kind == KindValue {
		b = append(b, e.Value...)
	}
	sum := b[start+len(entryMagic):]
	binary.BigEndian.PutUint32(sum, entrySum(key, sum[4:]))
	return b
}

func (e Entry) appendHeader(b []byte) []byte {
	for _, n := range [...]uint64{
		uint64(max(0, e.Age)), uint64(max(0, e.TTL)),
		uint64(max(0, e.StaleWhileRevalidate)), uint64(max(0, e.StaleIfError)),
		uint64(max(0, e.Keep)), uint64(max(0, e.BuildTime)), min(e.Sweep, 1<<63-1),
		uint64(e.Failures), uint64(max(0, e.RetryAge)),
	} {
		b = binary.AppendUvarint(b, n)
	}
	b = appendText(b, e.Failure)
	b = appendText(b, e.Validator)
	b = binary.AppendUvarint(b, uint64(len(e.Tags)))
	for _, tag := range e.Tags {
		b = appendText(b, tag)
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// Decode decodes what Append wrote under the same key. Value shares memory with
// data; appending to it does not write there. Anything else than the bytes of
// one whole entry of the key is an error that wraps [ErrCorrupt], and leaves e as it was.
func (e *Entry) Decode(key string, data []byte) error {
	if len(data) < entryPrefix || string(data[:len(entryMagic)]) != entryMagic {
		return fmt.Errorf("%w: no entry header", ErrCorrupt)
	}
	sum := data[len(entryMagic):]
	if binary.BigEndian.Uint32(sum) != entrySum(key, sum[4:]) {
		return fmt.Errorf("%w: checksum mismatch: damaged bytes, or the entry of another key", ErrCorrupt)
	}
	d := Entry{
		Kind:  EntryKind(sum[4]),
		Epoch: binary.BigEndian.Uint64(sum[5:]),
	}
	if d.Kind > KindUnshared {
		return fmt.Errorf("%w: unknown kind %d", ErrCorrupt, d.Kind)
	}
	length, rest := binary.BigEndian.Uint32(data[entryPrefix-4:]), data[entryPrefix:]
	if uint64(length) > uint64(len(rest)) {
		return fmt.Errorf("%w: header longer than the entry", ErrCorrupt)
	}
	header, value := headerReader{left: rest[:length]}, rest[length:]
	d.Age, d.TTL = header.duration(), header.duration()
	d.StaleWhileRevalidate, d.StaleIfError = header.duration(), header.duration()
	d.Keep, d.BuildTime, d.Sweep = header.duration(), header.duration(), header.number()
	failures := header.number()
	d.Failures, d.RetryAge, d.Failure = uint32(failures), header.duration(), header.text()
	d.Validator, d.Tags = header.text(), header.texts()
	if header.bad || failures > 1<<32-1 {
		return fmt.Errorf("%w: bad number in header", ErrCorrupt)
	}
	switch {
	case d.Kind == KindValue:
		d.Value = value[:len(value):len(value)]
	case len(value) != 0:
		return fmt.Errorf("%w: value in an entry without one", ErrCorrupt)
	}
	*e = d
	return nil
}

// A headerReader reads the fields of a header one after another. Behind its end they are zero.
type headerReader struct {
	left []byte
	bad  bool
}

func (r *headerReader) number() uint64 {
	if len(r.left) == 0 {
		return 0
	}
	v, n := binary.Uvarint(r.left)
	// A number has one encoding, the shortest: stores compare bytes to tell
	// whether two entries are the same.
	if n <= 0 || v > 1<<63-1 || n > 1 && r.left[n-1] == 0 {
		r.left, r.bad = nil, true
		return 0
	}
	r.left = r.left[n:]
	return v
}

func (r *headerReader) duration() time.Duration { return time.Duration(r.number()) }

func (r *headerReader) bytes(n uint64) []byte {
	if n > uint64(len(r.left)) {
		r.left, r.bad = nil, true
		return nil
	}
	b := r.left[:n:n]
	r.left = r.left[n:]
	return b
}

func (r *headerReader) text() string { return string(r.bytes(r.number())) }

func (r *headerReader) texts() (all []string) {
	n := r.number()
	if n > uint64(len(r.left)) { // each takes a byte at least
		r.left, r.bad = nil, true
		return nil
	}
	for range n {
		all = append(all, r.text())
	}
	return all
}
