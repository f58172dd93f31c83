package sweeplog

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/durations"
	"github.com/bellwether-go/bellwether/internal/httpcache"
)

// A Sweep invalidates all keys with something in common. It is a line of the log.
type Sweep struct {
	At    uint64 `json:"at"` // the position of the first log with the line
	Kind  Kind   `json:"kind"`
	What  Exact  `json:"what"`
	Soft  bool   `json:"soft,omitempty"`  // makes items stale instead of dropping them
	Plain bool   `json:"plain,omitempty"` // hits no key of TLS

	Heard durations.Instant `json:"-"` // when this process learnt of the sweep
}

// Exact is a string that JSON keeps byte for byte: a JSON string replaces a tag's bytes outside UTF-8.
type Exact string

// MarshalJSON implements [json.Marshaler].
func (x Exact) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(x)) }

// UnmarshalJSON implements [json.Unmarshaler].
func (x *Exact) UnmarshalJSON(data []byte) error {
	var b []byte
	err := json.Unmarshal(data, &b)
	*x = Exact(b)
	return err
}

// A Kind says what the keys of a sweep have in common.
type Kind string

const (
	ByKey    Kind = "key"    // a URL's key and its variants, of both schemes
	ByPrefix Kind = "prefix" // the beginning of URLs' keys, of both schemes
	ByName   Kind = "name"   // a key as it is
	ByStart  Kind = "start"  // the beginning of keys as they are
	ByTag    Kind = "tag"    // a tag of the values
)

// VariantMark stands between a key and the name of a variant. No key of the HTTP face contains it.
const VariantMark = "\x00"

// hits reports whether the sweep invalidates a key whose value has these tags.
func (s *Sweep) hits(key string, tags []string) bool {
	switch s.Kind {
	case ByName:
		return key == string(s.What)
	case ByStart:
		return strings.HasPrefix(key, string(s.What))
	}
	key, secure := strings.CutPrefix(key, httpcache.Secure) // keys and prefixes apply to both schemes
	if secure && s.Plain {
		return false
	}
	switch s.Kind {
	case ByKey:
		rest, ok := strings.CutPrefix(key, string(s.What))
		return ok && (rest == "" || strings.HasPrefix(rest, VariantMark))
	case ByPrefix:
		return strings.HasPrefix(key, string(s.What))
	case ByTag:
		return slices.Contains(tags, string(s.What))
	}
	return true // a kind of a later version may hit any key
}

// weight is the sweep's share of the log's bytes, at most.
func (s *Sweep) weight() int { return 100 + 2*len(s.What) }

// repeats reports whether s hits everything that an earlier sweep hits.
func (s *Sweep) repeats(earlier Sweep) bool {
	return !s.Soft && (s.Kind == earlier.Kind && s.What == earlier.What || s.Kind == ByPrefix && s.What == "")
}

// A Log is a state of the log. It does not change.
type Log struct {
	// Since is the position up to which the log has forgotten its sweeps. A value whose load saw no
	// later log may have been swept, and counts as swept.
	Since  uint64  `json:"since"`
	Sweeps []Sweep `json:"sweeps"` // the oldest first
	// At is the position: above the positions of all earlier logs that the writer knew, and at least its epoch. A
	// store that has lost its data may count epochs from below, and items have the positions of lost logs.
	At uint64 `json:"at"`
}

const (
	// MaxSweeps bounds the sweeps that the log remembers. Each reader fetches the whole log.
	MaxSweeps = 500
	// maxBytes is about the largest size of a log.
	maxBytes = 256 << 10
)

// everything is the position after all other positions.
const everything = 1<<64 - 1

// Only returns a log of these sweeps alone. They hit all items of all loads, and were heard at now.
func Only(sweeps []Sweep, now durations.Instant) *Log {
	l := &Log{Sweeps: slices.Clone(sweeps), At: everything}
	for i := range l.Sweeps {
		l.Sweeps[i].At, l.Sweeps[i].Heard = everything, now
	}
	return l
}

// lastPosition is the last position that an entry can record (see driver.Entry.Append).
const lastPosition = 1<<63 - 1

// decode returns the log in a store's entry. The result is false if the entry has no log, or a log after lastPosition,
// from which positions would wrap round. Then the sweeps are unknown, and every value that was loaded before must count
// as swept.
func decode(entry driver.Entry) (*Log, bool) {
	l := &Log{}
	err := json.Unmarshal(entry.Value, l)
	if err != nil || entry.Kind != driver.KindValue || l.Since == 0 || l.At < l.Since || l.At > lastPosition {
		return &Log{}, false
	}
	return l, true
}

// and returns the log with more sweeps, at a position. Old sweeps beyond the bounds are forgotten.
func (l *Log) and(at uint64, more []Sweep) *Log {
	next := &Log{Since: l.Since, Sweeps: slices.Clone(l.Sweeps), At: at}
	if len(more) > MaxSweeps { // the search for repetitions would take too long
		next.Since, next.Sweeps = at, nil
		return next
	}
	for _, s := range more {
		s.At = at
		next.Sweeps = append(slices.DeleteFunc(next.Sweeps, s.repeats), s)
	}
	first, size := len(next.Sweeps), 0
	for first > 0 && len(next.Sweeps)-first < MaxSweeps {
		if size += next.Sweeps[first-1].weight(); size > maxBytes {
			break
		}
		first--
	}
	return next.without(first)
}

// without returns the log without its first n sweeps.
func (l *Log) without(n int) *Log {
	if n == 0 {
		return l
	}
	return &Log{Since: l.Sweeps[n-1].At, Sweeps: slices.Clone(l.Sweeps[n:]), At: l.At}
}

// hear gives each sweep the instant of this process's knowledge: now, unless known has the sweep.
func (l *Log) hear(known *Log, now durations.Instant) {
	heard := map[uint64]durations.Instant{}
	if known != nil {
		for _, s := range known.Sweeps {
			heard[s.At] = s.Heard
		}
	}
	for i := range l.Sweeps {
		s := &l.Sweeps[i]
		s.Heard = now
		if at, ok := heard[s.At]; ok {
			s.Heard = at
		}
	}
}

// Position is l.At, 0 without a log. A load records the position of the log that it saw.
func (l *Log) Position() uint64 {
	if l == nil {
		return 0
	}
	return l.At
}

// Against applies the log to an item of key whose load saw the log up to position. gone reports
// that the item was invalidated. Otherwise stale is when the item became stale, [durations.Forever]
// if it did not. traits returns the tags of the item, and whether the item is only a signpost to
// other items, which no sweep makes stale. Against calls it at most once.
func (l *Log) Against(key string, position uint64, traits func() (tags []string, signpost bool)) (gone bool, stale durations.Instant) {
	if l == nil || position >= l.At {
		return false, durations.Forever
	}
	if position < l.Since {
		return true, durations.Forever
	}
	tags, signpost := traits()
	stale = durations.Forever
	for i := range l.Sweeps {
		s := &l.Sweeps[i]
		switch {
		case s.At <= position || !s.hits(key, tags):
		case !s.Soft:
			return true, durations.Forever
		case !signpost:
			stale = min(stale, s.Heard)
		}
	}
	return false, stale
}

// HeardSince returns the number of sweeps that this process has heard of since then.
func (l *Log) HeardSince(then durations.Instant) (n int) {
	if l == nil {
		return 0
	}
	for i := range l.Sweeps {
		if l.Sweeps[i].Heard > then {
			n++
		}
	}
	return n
}
