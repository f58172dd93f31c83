package driver

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

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
//	"BW" version(1) | crc32c of all that follows, big endian(4) | kind(1) | epoch, big endian(8) |
//	uvarints: age, ttl, stale-while-revalidate, stale-if-error, keep, build time (ns), sweep, failures, retry age (ns), len(failure) |
//	failure | value
//
// The checksum tells our bytes from foreign and damaged ones; it is no
// protection against somebody who can write to the store.
const (
	entryMagic  = "BW\x02"
	entryHeader = len(entryMagic) + 4 + 1 + 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendBinary appends the encoded entry to b. Negative durations become 0, and
// Value is left out unless Kind is KindValue. It never fails.
func (e Entry) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, entryMagic...)
	b = append(b, 0, 0, 0, 0, byte(e.Kind))
	b = binary.BigEndian.AppendUint64(b, e.Epoch)
	for _, n := range [...]uint64{
		uint64(max(0, e.Age)), uint64(max(0, e.TTL)),
		uint64(max(0, e.StaleWhileRevalidate)), uint64(max(0, e.StaleIfError)),
		uint64(max(0, e.Keep)), uint64(max(0, e.BuildTime)), min(e.Sweep, 1<<63-1),
		uint64(e.Failures), uint64(max(0, e.RetryAge)), uint64(len(e.Failure)),
	} {
		b = binary.AppendUvarint(b, n)
	}
	b = append(b, e.Failure...)
	if e.Kind == KindValue {
		b = append(b, e.Value...)
	}
	sum := b[start+len(entryMagic):]
	binary.BigEndian.PutUint32(sum, crc32.Checksum(sum[4:], castagnoli))
	return b, nil
}

// UnmarshalBinary decodes what AppendBinary wrote. Value shares memory with
// data; appending to it does not write there. Anything else than the bytes of
// one whole entry is an error that wraps [ErrCorrupt], and leaves e as it was.
func (e *Entry) UnmarshalBinary(data []byte) error {
	if len(data) < entryHeader || string(data[:len(entryMagic)]) != entryMagic {
		return fmt.Errorf("%w: no entry header", ErrCorrupt)
	}
	sum := data[len(entryMagic):]
	if binary.BigEndian.Uint32(sum) != crc32.Checksum(sum[4:], castagnoli) {
		return fmt.Errorf("%w: checksum mismatch", ErrCorrupt)
	}
	d := Entry{
		Kind:  EntryKind(sum[4]),
		Epoch: binary.BigEndian.Uint64(sum[5:]),
	}
	if d.Kind > KindUnshared {
		return fmt.Errorf("%w: unknown kind %d", ErrCorrupt, d.Kind)
	}
	rest := data[entryHeader:]
	var nums [10]uint64
	for i := range nums {
		v, n := binary.Uvarint(rest)
		// A number has one encoding, the shortest: stores compare bytes to tell
		// whether two entries are the same.
		if n <= 0 || v > 1<<63-1 || n > 1 && rest[n-1] == 0 {
			return fmt.Errorf("%w: bad number in header", ErrCorrupt)
		}
		nums[i], rest = v, rest[n:]
	}
	if nums[7] > 1<<32-1 || nums[9] > uint64(len(rest)) {
		return fmt.Errorf("%w: bad failure record", ErrCorrupt)
	}
	d.Age, d.TTL = time.Duration(nums[0]), time.Duration(nums[1])
	d.StaleWhileRevalidate, d.StaleIfError = time.Duration(nums[2]), time.Duration(nums[3])
	d.Keep, d.BuildTime, d.Sweep = time.Duration(nums[4]), time.Duration(nums[5]), nums[6]
	d.Failures, d.RetryAge = uint32(nums[7]), time.Duration(nums[8])
	d.Failure, d.Value = string(rest[:nums[9]]), rest[nums[9]:len(rest):len(rest)]
	if d.Kind != KindValue {
		if len(d.Value) != 0 {
			return fmt.Errorf("%w: value in an entry without one", ErrCorrupt)
		}
		d.Value = nil
	}
	*e = d
	return nil
}
