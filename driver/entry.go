package driver

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
	"unsafe"

	"github.com/bellwether-go/bellwether/internal/durations"
)

// This file is the entry and its encoding.

// An EntryKind is the content of an [Entry].
type EntryKind uint8

const (
	// KindNone holds nothing: the zero Entry, or a record of failed rebuilds.
	KindNone EntryKind = iota
	// KindValue holds a value.
	KindValue
	// KindNotFound records a load's answer of ErrNotFound.
	KindNotFound
	// KindUnshared stands for a value outside the store: too large, not encodable, refused by the
	// store, or without a life. Each process loads the value for itself.
	KindUnshared
	// KindUnelected records that a load has failed, and that only callers like its own have the failure.
	// Up to TTL each process loads without an election. The first value takes the entry's place.
	KindUnelected
)

// An Entry is the content of a [Store] under one key. All its times are durations on one axis, the
// age of the value, so clocks of different machines are never compared.
type Entry struct {
	Kind EntryKind
	// Value is the encoded value if Kind is KindValue.
	Value []byte
	// Epoch is the epoch of the entry's commit.
	Epoch uint64

	// Age is the age of the value, as given to Commit. Get and Claim add the time in the store.
	Age time.Duration
	// TTL is the age at which the value stops being fresh.
	TTL time.Duration
	// StaleWhileRevalidate is how long after TTL the value is served during a rebuild (RFC 5861 section 3).
	StaleWhileRevalidate time.Duration
	// StaleIfError is how long after TTL the value is served while rebuilds fail (RFC 5861 section 4).
	StaleIfError time.Duration
	// Keep is the least time after TTL to keep the value, past its windows only as the start of a rebuild.
	Keep time.Duration
	// BuildTime is the duration of the load.
	BuildTime time.Duration
	// Sweep is the cache's position in its log of invalidations when the load began. Later records
	// of the log apply to the value.
	Sweep uint64

	// Failures counts the failed rebuilds in a row since the value was built. A success makes it 0.
	Failures uint32
	// RetryAge is the age of the next try, if Failures > 0. No process tries before it, except once
	// after a recovery of the origin.
	RetryAge time.Duration
	// Failure is the text of the last failure, if Failures > 0.
	Failure string

	// Validator is the source's name for this version of the value, such as an entity tag, or empty.
	Validator string
	// Tags are names for invalidating the value together with other values.
	Tags []string
}

// Fresh reports whether the entry answers a call without a rebuild. A value below its TTL does so
// if the last rebuild succeeded. After failures the entry answers until the next try is due.
func (e Entry) Fresh() bool {
	if e.Failures > 0 {
		return e.Age < e.RetryAge
	}
	return e.Kind != KindNone && e.Age < e.TTL
}

// FailureMemory is how long Failures is kept after the next try is due. Pauses between tries grow by it.
const FailureMemory = time.Minute

// Life returns the remaining time for which a store has to keep the entry. A life ends when the
// last window and Keep have passed and the failures are forgotten.
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
// where a text is its length, as a uvarint, and its bytes. Later versions add fields at the end of
// the header: a decoder skips unknown fields and reads missing fields as zero.
//
// The checksum detects foreign and damaged bytes, and another key's entry from a proxy with mixed-up replies.
// It does not protect against an attacker with write access to the store.
const (
	entryMagic  = "BW\x03"
	entryPrefix = len(entryMagic) + 4 + 1 + 8 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entrySum is the checksum of an entry under the key. rest is the bytes behind the checksum.
func entrySum(key string, rest []byte) uint32 {
	// A conversion would copy the key: the compiler cannot see that the table's function keeps nothing.
	of := crc32.Checksum(unsafe.Slice(unsafe.StringData(key), len(key)), castagnoli)
	return crc32.Update(of, castagnoli, rest)
}

// Append appends the encoding of the entry under key to b. Negative durations become 0. Value is
// left out unless Kind is KindValue.
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

// Decode decodes the bytes of Append under the same key. Value shares memory with data; appending
// to Value does not write there. If data is not one whole entry of the key, the error wraps
// [ErrCorrupt] and e stays as before.
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
	if d.Kind > KindUnelected {
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

type headerReader struct {
	left []byte
	bad  bool
}

func (r *headerReader) number() uint64 {
	if len(r.left) == 0 {
		return 0
	}
	v, n := binary.Uvarint(r.left)
	// A number has one encoding, the shortest: stores compare the bytes of two entries.
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
	if n > uint64(len(r.left)) { // each text takes at least one byte
		r.left, r.bad = nil, true
		return nil
	}
	for range n {
		all = append(all, r.text())
	}
	return all
}
