package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/lockers/locallock"
	"github.com/bellwether-go/bellwether/stores/storetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A model is an engine and its store, as short as the contract allows, with the faults that the kit
// must find.
type model struct {
	fault  string // "" for none
	locker *locallock.Locker

	mu     sync.Mutex // guards all below
	values map[string]kept
	marks  map[string]mark

	listeners map[chan toldAt]struct{}
}

// A toldAt is a notice with the time of its change.
type toldAt struct {
	driver.Notice
	at time.Time
}

type kept struct {
	data      []byte
	committed time.Time
	expires   time.Time // by the engine's own clock; zero if the entry's Life decides
}

type mark struct {
	counter, floor uint64
	written        time.Time
	before         uint64 // the floor before an invalidation
}

const modelLimit = 2 << 20

func newModel(fault string) storetest.Instance {
	m := &model{fault: fault, locker: locallock.New(), listeners: map[chan toldAt]struct{}{}}
	m.restart()
	i := storetest.Instance{
		Open:     func(testing.TB) driver.Store { return m },
		Notifies: true,
		Batches:  true,
		Touches:  true,
		Elects:   true,
		Mix: func(_ testing.TB, from, to string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.values[to] = m.values[from]
		},
		Evict: func(_ testing.TB, key string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.values, key)
			delete(m.marks, key)
		},
		EvictCounter: func(_ testing.TB, key string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.marks, key)
		},
		Poison: func(_ testing.TB, key string, data []byte) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.values[key] = kept{data: data, committed: time.Now()}
		},
		Restart:  func(testing.TB) { m.restart() },
		TooLarge: modelLimit + 1,
	}
	switch fault {
	case "the tests do not know that it touches":
		i.Touches = false
	case "the tests cannot evict":
		i.Evict = nil
	}
	return i
}

func (m *model) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values, m.marks = map[string]kept{}, map[string]mark{}
}

// read returns the entry under key. The caller holds mu.
func (m *model) read(key string) (driver.Entry, error) {
	v, ok := m.values[key]
	if !ok || !v.expires.IsZero() && time.Now().After(v.expires) {
		return driver.Entry{}, driver.ErrNotFound
	}
	var e driver.Entry
	if err := e.Decode(m.sealed(key), v.data); err != nil {
		if m.fault == "foreign bytes are served" {
			return driver.Entry{Kind: driver.KindValue, Value: v.data, TTL: time.Hour}, nil
		}
		return driver.Entry{}, err
	}
	switch m.fault {
	case "the validator is lost":
		e.Validator = ""
	case "the tags are lost":
		e.Tags = nil
	}
	switch m.fault {
	case "the age stands still":
	case "the age is lost":
		e.Age = time.Since(v.committed)
	default:
		e.Age += time.Since(v.committed)
	}
	if m.fault == "the sweep is lost" {
		e.Sweep = 0
	}
	if e.Kind == driver.KindUnshared && m.fault == "an unshared entry is none" {
		return driver.Entry{}, driver.ErrNotFound
	}
	if e.Life() <= 0 && m.fault != "expired entries are served" {
		return driver.Entry{}, driver.ErrNotFound
	}
	passed := time.Since(v.committed)
	if m.fault == "an entry is kept for its TTL only" && e.TTL > 0 && e.Age > e.TTL ||
		m.fault == "an entry is kept for half its life" && passed > e.Life() {
		return driver.Entry{}, driver.ErrNotFound
	}
	if len(e.Value) == 0 && e.Kind == driver.KindValue && m.fault == "an empty value is none" {
		return driver.Entry{}, driver.ErrNotFound
	}
	return e, nil
}

// mark returns the counter and the floor of key. The caller holds mu.
func (m *model) mark(key string) (mark, bool) {
	k, known := m.marks[key]
	old := time.Since(k.written) > time.Second
	switch {
	case m.fault == "a claim is forgotten after a second" && old:
		return mark{}, false
	case m.fault == "an invalidation is remembered for a second" && old && k.before != 0:
		k.floor = k.before
	case m.fault == "a floor goes with its entry":
		_, had := m.values[key]
		if _, err := m.read(key); had && err == driver.ErrNotFound {
			k.floor = 1
		}
	}
	return k, known
}

func (m *model) seed() uint64 {
	if m.fault == "a lost counter begins at 1" {
		return 0
	}
	return uint64(time.Now().UnixMicro())
}

func (m *model) Get(ctx context.Context, key string) (driver.Entry, error) {
	if err := ctx.Err(); err != nil && m.fault != "the context is ignored" {
		return driver.Entry{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read(m.name(key))
}

func (m *model) GetMany(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
	for i, key := range keys {
		e, err := m.Get(ctx, key)
		switch {
		case m.fault == "a batch mixes its keys up" && i < 2 && len(keys) > 1:
			e, err = m.Get(ctx, keys[1-i])
		case m.fault == "a batch leaves a key out" && i == len(keys)-1:
			return
		case m.fault == "a batch ends at 500 keys" && i == 500:
			return
		case m.fault == "a batch answers twice" && i == 0:
			each(i, e, err)
		case m.fault == "a batch answers too late" && i == 0:
			time.AfterFunc(10*time.Millisecond, func() { each(i, e, err) })
			continue
		case m.fault == "a batch fails by one bad entry" && len(keys) == 2 && errors.Is(err, driver.ErrCorrupt):
			each(0, e, err)
			each(1, e, err)
			return
		case m.fault == "a batch has no age":
			e.Age = 0
		case m.fault == "a batch ignores the context":
			e, err = m.Get(context.Background(), key)
		}
		each(i, e, err)
	}
}

func (m *model) Claim(ctx context.Context, key string) (driver.Entry, uint64, error) {
	if err := ctx.Err(); err != nil && m.fault != "the context is ignored" {
		return driver.Entry{}, 0, err
	}
	key = m.name(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.claim(key)
}

// The caller holds mu.
func (m *model) claim(key string) (driver.Entry, uint64, error) {
	e, err := m.read(key)
	if err != nil && m.fault == "a claim fails over foreign bytes" && err != driver.ErrNotFound {
		return e, 0, err
	}
	k, ok := m.mark(key)
	k.written = time.Now()
	if !ok {
		seed := m.seed()
		k.counter, k.floor = seed, seed
		if m.fault == "a lost floor is none" {
			k.floor = 0
		}
	}
	if m.fault != "all claims have one epoch" || !ok {
		k.counter++
	}
	m.marks[key] = k
	return e, k.counter, nil
}

func (m *model) Commit(ctx context.Context, key string, e driver.Entry) error {
	if m.fault == "invalidate leaves the entry" {
		time.Sleep(5 * time.Millisecond) // many commits are under way when the case fails
	}
	if err := ctx.Err(); err != nil && m.fault != "the context is ignored" {
		return err
	}
	key = m.name(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commit(key, e)
}

// The caller holds mu.
func (m *model) commit(key string, e driver.Entry) error {
	if len(e.Value) > modelLimit {
		return driver.ErrTooLarge
	}
	data := e.Append(nil, m.sealed(key))
	k, known := m.mark(key)
	switch {
	case m.fault == "no fencing":
	case !known && m.fault == "an unknown claim is taken":
	case !known:
		return driver.ErrFenced
	case e.Epoch > k.counter && m.fault != "any epoch is taken":
		return driver.ErrFenced
	case e.Epoch == k.floor && m.fault == "a commit cannot be repeated":
		return driver.ErrFenced
	case e.Epoch == k.floor && m.fault == "the same epoch overwrites":
	case e.Epoch == k.floor:
		if v, ok := m.values[key]; ok && !bytes.Equal(v.data, data) {
			return driver.ErrFenced
		}
		if m.fault == "a repeated commit is told twice" {
			m.tell(driver.Notice{Key: key, Epoch: e.Epoch})
		}
		return nil
	case e.Epoch < k.floor:
		if m.fault == "a refused commit is told" {
			m.tell(driver.Notice{Key: key, Epoch: e.Epoch, Entry: e})
		}
		if m.fault == "a late commit leaves its value" {
			m.values[key] = kept{data: data, committed: time.Now()}
		}
		return driver.ErrFenced
	case e.Epoch < k.counter && m.fault == "only the last claim commits":
		return driver.ErrFenced
	}
	if m.fault == "a commit is told before it is done" {
		m.tellFirst(driver.Notice{Key: key, Epoch: e.Epoch})
		defer m.deaf()()
	}
	if e.Life() > 0 {
		m.values[key] = kept{data: data, committed: time.Now()}
	} else if m.fault != "nothing to keep keeps the old" {
		delete(m.values, key)
	}
	floor := e.Epoch
	if m.fault == "a commit leaves the floor" {
		floor = k.floor
	}
	m.marks[key] = mark{counter: max(k.counter, e.Epoch), floor: floor, written: time.Now()}
	n := driver.Notice{Key: key, Epoch: e.Epoch}
	if n.Entry, _ = m.read(key); m.fault == "a commit's notice has another's age" {
		n.Entry.Age = 0
	}
	m.tell(n)
	return nil
}

// tell queues a notice. The caller holds mu.
func (m *model) tell(n driver.Notice) {
	if m.fault == "notices have their keys as text" {
		n.Key = strings.ToValidUTF8(n.Key, "\ufffd")
	}
	for queue := range m.listeners {
		select {
		case queue <- toldAt{n, time.Now()}:
		default: // lost, as the contract allows
		}
	}
}

// tellFirst gives listeners time to read before the change. The caller holds mu.
func (m *model) tellFirst(n driver.Notice) {
	m.tell(n)
	m.mu.Unlock()
	defer m.mu.Lock()
	time.Sleep(20 * time.Millisecond)
}

func (m *model) Notify(ctx context.Context, f func(driver.Notice)) {
	queue := make(chan toldAt, 10_000)
	var wg sync.WaitGroup
	defer wg.Wait()
	m.mu.Lock()
	m.listeners[queue] = struct{}{}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.listeners, queue)
	}()
	for {
		select {
		case n := <-queue:
			if n.Entry.Epoch != 0 && m.fault != "a late notice has the age of its commit" {
				n.Entry.Age += time.Since(n.at)
			}
			switch m.fault {
			case "a notice is made when it arrives":
				n.Made = time.Now()
			case "a notice has the entry of when it arrives":
				m.mu.Lock()
				n.Entry, _ = m.read(n.Key)
				m.mu.Unlock()
			}
			if m.fault == "notices overlap" {
				wg.Go(func() { f(n.Notice) })
				continue
			}
			f(n.Notice)
		case <-ctx.Done():
			if m.fault == "listeners never return" {
				<-make(chan struct{})
			}
			return
		}
	}
}

func (m *model) Invalidate(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil && m.fault != "the context is ignored" {
		return err
	}
	key = m.name(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == "an invalidation is told before it is done" {
		m.tellFirst(driver.Notice{Key: key, Epoch: max(m.seed(), m.marks[key].counter) + 1, Invalidated: true})
		defer m.deaf()()
	}
	if m.fault != "invalidate leaves the entry" {
		delete(m.values, key)
	}
	if m.fault == "invalidate only deletes" {
		return nil
	}
	_, known := m.marks[key]
	epoch := max(m.seed(), m.marks[key].counter) + 1
	m.marks[key] = mark{counter: epoch, floor: epoch, written: time.Now(), before: max(1, m.marks[key].floor)}
	n := driver.Notice{Key: key, Epoch: epoch, Invalidated: true}
	if m.fault == "an invalidation of what is unknown is told without its epoch" && !known {
		n.Epoch = 0
	}
	if m.fault == "an invalidation's notice has the epoch before it" {
		n.Epoch = 1
	}
	m.tell(n)
	return nil
}

func (m *model) Touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key = m.name(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	k, known := m.mark(key)
	switch {
	case known && m.fault == "a touch takes an epoch that was never given out":
		k.counter = max(k.counter, e.Epoch)
		m.marks[key] = k
	case !known && m.fault == "a touch of a forgotten claim is taken":
		k, known = mark{counter: e.Epoch, floor: of}, true
		m.marks[key] = k
	}
	if !known || e.Epoch > k.counter || e.Epoch < k.floor && m.fault != "a touch is not fenced" {
		return driver.ErrFenced
	}
	present, err := m.read(key)
	switch {
	case err == nil && present.Kind != driver.KindValue && m.fault != "a touch of what is no value makes it one":
		return driver.ErrNotFound
	case err == nil && (present.Epoch == of || present.Epoch == e.Epoch && m.fault != "a touch cannot be repeated"):
	case err == nil && m.fault == "a touch takes any value":
	case m.fault == "a touch of nothing succeeds":
		return nil
	default:
		return driver.ErrNotFound
	}
	e.Value = present.Value
	switch m.fault {
	case "a touch loses the value":
		e.Value = nil
	case "a touch keeps the old validator":
		e.Validator = present.Validator
	case "a touch keeps the age of before":
		e.Age = present.Age
	case "a touch is not fenced":
		m.marks[key] = mark{counter: k.counter, written: time.Now()}
	case "a touch is not told":
		defer m.deaf()()
	}
	if err := m.commit(key, e); err != nil {
		return err
	}
	switch m.fault {
	case "a touch leaves the floor":
		m.marks[key] = k
	case "a touch does not prolong the engine's own expiry":
		v := m.values[key]
		v.expires = time.Now().Add(present.Life())
		m.values[key] = v
	}
	return nil
}

// deaf keeps notices from all listeners until hear is called. The caller holds mu.
func (m *model) deaf() (hear func()) {
	listeners := m.listeners
	m.listeners = nil
	return func() { m.listeners = listeners }
}

func (m *model) TryAcquire(ctx context.Context, key string, ttl time.Duration) (driver.Lease, error) {
	return m.locker.TryAcquire(ctx, m.name(key), ttl)
}

func (m *model) Watch(ctx context.Context, held *driver.HeldError) (<-chan struct{}, error) {
	return m.locker.Watch(ctx, held)
}

func (m *model) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	if err := ctx.Err(); err != nil && m.fault != "an election ignores the context" {
		return driver.Election{}, err
	}
	won, err := m.elect(ctx, m.name(key), past, ttl)
	if won.Held != nil {
		won.Held.Key = key
	}
	switch {
	case m.fault == "an election whose caller has left leaves its lease":
		time.Sleep(10 * time.Millisecond) // the reply is under way
		if ctx.Err() != nil {
			return driver.Election{}, ctx.Err()
		}
	case m.fault == "who is held is told that the lease is over" && won.Held != nil:
		won.Held.Until = time.Now().Add(-time.Minute)
	case m.fault == "who is held is told of an early end" && won.Held != nil:
		won.Held.Until = won.Held.Until.Add(-ttl / 2)
	}
	return won, err
}

func (m *model) elect(ctx context.Context, key string, past uint64, ttl time.Duration) (won driver.Election, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if won.Entry, err = m.read(key); m.fault == "an election fails over foreign bytes" && errors.Is(err, driver.ErrCorrupt) {
		return driver.Election{}, err
	}
	if m.fault == "an election shows an entry as young as at its commit" && err == nil {
		won.Entry.Age -= time.Since(m.values[key].committed)
	}
	fresh := won.Entry.Fresh()
	if m.fault == "an election knows no failures" {
		fresh = won.Entry.Age < won.Entry.TTL
	}
	if m.fault == "an election takes what is stale for fresh" {
		fresh = won.Entry.Kind != driver.KindNone
	}
	if m.fault == "an election does not look past" {
		past = 0
	}
	if fresh && won.Entry.Epoch > past && m.fault != "an election is held in any case" {
		return won, nil
	}
	if m.fault == "anybody can be elected" {
		won.Lease, _ = locallock.New().TryAcquire(ctx, key, ttl)
		won.Entry, won.Epoch, err = m.claim(key)
		return won, err
	}
	lease, err := m.locker.TryAcquire(context.WithoutCancel(ctx), m.leaseKey(key), m.leaseTTL(ttl))
	if m.fault != "an election takes any ttl" && ttl <= 0 {
		return driver.Election{}, errors.New("not positive")
	}
	if held, ok := errors.AsType[*driver.HeldError](err); ok {
		if won.Held = held; m.fault == "who is not elected sees no entry" {
			won.Entry = driver.Entry{}
		}
		return won, nil
	}
	won.Lease = lease
	_, won.Epoch, err = m.claim(key)
	switch m.fault {
	case "the elected one has an old epoch":
		won.Epoch = won.Entry.Epoch
	case "the elected one sees no entry":
		won.Entry = driver.Entry{}
	}
	return won, err
}

func (m *model) leaseKey(key string) string {
	if m.fault == "the leases of long keys are one" && len(key) > 250 {
		return key[:250]
	}
	return key
}

func (m *model) leaseTTL(ttl time.Duration) time.Duration {
	switch m.fault {
	case "the elected one's lease never ends":
		return 1000 * time.Hour
	case "the elected one's lease ends early":
		return max(ttl/4, 1)
	}
	return max(ttl, 1)
}

func (m *model) CommitAndRelease(ctx context.Context, key string, e driver.Entry, lease driver.Lease) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key = m.name(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fault == "a commit depends on its lease" && lease.Renew(ctx, time.Minute) != nil {
		return driver.ErrFenced
	}
	switch {
	case m.fault == "a commit and release cannot be repeated" && e.Epoch == m.marks[key].floor:
		return driver.ErrFenced
	case m.fault == "a commit and release is not told":
		defer m.deaf()()
	}
	err := m.commit(key, e)
	switch {
	case m.fault == "a commit leaves the lease":
	case m.fault == "a late commit frees another's lease":
		m.locker = locallock.New()
	case err == nil || m.fault == "a refused commit ends the lease":
		lease.Release(ctx)
	}
	return err
}

// sealed is the key in an entry's checksum.
func (m *model) sealed(key string) string {
	if m.fault == "entries do not know their keys" {
		return ""
	}
	return key
}

func (m *model) name(key string) string {
	switch m.fault {
	case "keys are trimmed":
		return strings.TrimSpace(key)
	case "keys are file names":
		return strings.ReplaceAll(key, "/", "_")
	}
	return key
}

func TestRun_Model(t *testing.T) {
	storetest.Run(t, func(testing.TB) storetest.Instance { return newModel("") })
}

// mutants maps each fault to the case that must find it by itself.
var mutants = map[string]string{
	"no fencing":                            "LateCommit",
	"a lost counter begins at 1":            "Evict",
	"a lost floor is none":                  "Evict",
	"an unknown claim is taken":             "Restart",
	"a commit cannot be repeated":           "CommitAgain",
	"the same epoch overwrites":             "CommitAgain",
	"a late commit leaves its value":        "LateCommit",
	"only the last claim commits":           "CommitsInOrder",
	"any epoch is taken":                    "EpochNeverClaimed",
	"all claims have one epoch":             "EpochsAreDistinct",
	"the tests do not know that it touches": "Abilities",
	"the tests cannot evict":                "Evict",

	"invalidate only deletes":          "Invalidate",
	"invalidate leaves the entry":      "InvalidateRacesCommits",
	"foreign bytes are served":         "Poison",
	"a claim fails over foreign bytes": "Poison",
	"the age stands still":             "Age",
	"the age is lost":                  "Age",
	"expired entries are served":       "LifeEnds",
	"nothing to keep keeps the old":    "NothingToKeep",
	"an empty value is none":           "Sizes",
	"the sweep is lost":                "RoundTrip",
	"an unshared entry is none":        "RoundTrip",
	"the context is ignored":           "Context",
	"keys are trimmed":                 "HostileKeys",
	"keys are file names":              "HostileKeys",

	"an entry is kept for its TTL only":          "Kept",
	"an entry is kept for half its life":         "Kept",
	"a claim is forgotten after a second":        "ClaimLasts",
	"an invalidation is remembered for a second": "InvalidationLasts",
	"a floor goes with its entry":                "FloorOutlivesEntry",

	"the validator is lost":          "RoundTrip",
	"the tags are lost":              "RoundTrip",
	"entries do not know their keys": "Mix",

	"a touch loses the value":         "Touch",
	"a touch cannot be repeated":      "Touch",
	"a touch keeps the old validator": "Touch",
	"a touch is not fenced":           "TouchFenced",
	"a touch takes any value":         "TouchFenced",
	"a touch of nothing succeeds":     "TouchFenced",

	"a touch of a forgotten claim is taken":            "TouchFenced",
	"a touch keeps the age of before":                  "Touch",
	"a touch leaves the floor":                         "TouchRaisesFloor",
	"a touch takes an epoch that was never given out":  "TouchEpochNeverClaimed",
	"a touch of what is no value makes it one":         "TouchNoValue",
	"a touch does not prolong the engine's own expiry": "TouchProlongs",

	"a commit leaves the floor": "Set",

	"anybody can be elected":                    "ElectRace",
	"an election is held in any case":           "Elect",
	"an election takes what is stale for fresh": "Elect",
	"who is not elected sees no entry":          "Elect",
	"the elected one sees no entry":             "Elect",
	"the elected one has an old epoch":          "Elect",
	"an election does not look past":            "ElectPast",
	"an election knows no failures":             "ElectFailure",
	"an election ignores the context":           "ElectArguments",
	"an election takes any ttl":                 "ElectArguments",
	"a commit leaves the lease":                 "CommitAndRelease",
	"a refused commit ends the lease":           "CommitAndReleaseRefused",
	"a commit depends on its lease":             "CommitAndReleaseLate",
	"a late commit frees another's lease":       "CommitAndReleaseLate",

	"an election shows an entry as young as at its commit": "Age",
	"the elected one's lease never ends":                   "ElectLeaseEnds",
	"the elected one's lease ends early":                   "ElectLeaseEnds",
	"who is held is told of an early end":                  "ElectLeaseEnds",
	"who is held is told that the lease is over":           "Elect",
	"an election whose caller has left leaves its lease":   "ElectCallerLeaves",
	"an election fails over foreign bytes":                 "ElectPoison",
	"the leases of long keys are one":                      "ElectLongKeys",
	"a commit and release cannot be repeated":              "CommitAndRelease",

	"a batch mixes its keys up":      "GetMany",
	"a batch leaves a key out":       "GetMany",
	"a batch ends at 500 keys":       "GetMany",
	"a batch answers twice":          "GetMany",
	"a batch answers too late":       "GetMany",
	"a batch fails by one bad entry": "GetMany",
	"a batch has no age":             "GetMany",
	"a batch ignores the context":    "GetMany",

	"a commit's notice has another's age":              "Notices",
	"notices have their keys as text":                  "Notices",
	"a repeated commit is told twice":                  "Notices",
	"a refused commit is told":                         "Notices",
	"an invalidation's notice has the epoch before it": "Notices",
	"a touch is not told":                              "NoticesOfOtherWrites",
	"a commit and release is not told":                 "NoticesOfOtherWrites",
	"a commit is told before it is done":               "NoticesFollow",
	"an invalidation is told before it is done":        "NoticesFollow",
	"a notice is made when it arrives":                 "LateNotices",

	"an invalidation of what is unknown is told without its epoch": "NoticesAfterEvict",

	"a late notice has the age of its commit":   "LateNotices",
	"a notice has the entry of when it arrives": "LateNotices",
	"notices overlap":                           "LateNotices",
	"listeners never return":                    "NoticesEnd",
}

const mutantVar = "STORETEST_MUTANT"

// TestRun_FindsMutants runs this test binary once per mutant: only a failed test shows that Run fails.
func TestRun_FindsMutants(t *testing.T) {
	if os.Getenv(mutantVar) != "" {
		t.Skip("this is the process of a mutant")
	}
	for _, fault := range slices.Sorted(maps.Keys(mutants)) {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			only := fmt.Sprintf("-test.run=^TestMutant$/./^%s$", mutants[fault])
			cmd := exec.CommandContext(t.Context(), os.Args[0], only, "-test.timeout=60s")
			cmd.Env = append(os.Environ(), mutantVar+"="+fault)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("Run passed a store of which %s", fault)
			}
			want := fmt.Sprintf("/%s (", mutants[fault])
			found := false
			for line := range strings.Lines(string(out)) {
				found = found || strings.Contains(line, "--- FAIL: TestMutant/") && strings.Contains(line, want)
			}
			if !found || strings.Contains(string(out), "panic:") {
				t.Fatalf("case %s did not fail, or panics:\n%s", mutants[fault], out)
			}
		})
	}
}

func TestMutant(t *testing.T) {
	fault := os.Getenv(mutantVar)
	if fault == "" {
		t.Skip("run by TestRun_FindsMutants")
	}
	storetest.Run(t, func(testing.TB) storetest.Instance { return newModel(fault) })
	time.Sleep(50 * time.Millisecond) // a report that comes after its case panics
}

// A silent store waits for each call's context, except in one method.
type silent struct {
	*model
	answers string
}

func (s silent) wait(ctx context.Context, method string) error {
	if s.answers == method {
		return driver.ErrNotFound
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s silent) Get(ctx context.Context, _ string) (driver.Entry, error) {
	return driver.Entry{}, s.wait(ctx, "Get")
}

func (s silent) Claim(ctx context.Context, _ string) (driver.Entry, uint64, error) {
	return driver.Entry{}, 0, s.wait(ctx, "Claim")
}

func (s silent) Commit(ctx context.Context, _ string, _ driver.Entry) error {
	return s.wait(ctx, "Commit")
}

func (s silent) Invalidate(ctx context.Context, _ string) error { return s.wait(ctx, "Invalidate") }

func (s silent) Touch(ctx context.Context, _ string, _ uint64, _ driver.Entry) error {
	return s.wait(ctx, "Touch")
}

func (s silent) Elect(ctx context.Context, _ string, _ uint64, _ time.Duration) (driver.Election, error) {
	return driver.Election{}, s.wait(ctx, "Elect")
}

func (s silent) CommitAndRelease(ctx context.Context, _ string, _ driver.Entry, _ driver.Lease) error {
	return s.wait(ctx, "CommitAndRelease")
}

func (s silent) Fenced(ctx context.Context, _ string, _ uint64) (bool, error) {
	return false, s.wait(ctx, "Fenced")
}

func (s silent) GetMany(ctx context.Context, keys []string, each func(i int, e driver.Entry, err error)) {
	err := s.wait(ctx, "GetMany")
	for i := range keys {
		each(i, driver.Entry{}, err)
	}
}

type verdict struct {
	testing.TB
	errors []string
}

func (v *verdict) Errorf(format string, args ...any) {
	v.errors = append(v.errors, fmt.Sprintf(format, args...))
}

// TestHang_FindsMutants has Hang find each method that does not wait for its engine.
func TestHang_FindsMutants(t *testing.T) {
	for _, method := range []string{"", "Claim", "Commit", "Invalidate", "Fenced", "GetMany", "Touch", "Elect", "CommitAndRelease"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			s := silent{&model{}, method}
			hang := &verdict{TB: t}
			lease, err := locallock.New().TryAcquire(t.Context(), "hang", time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			storetest.Hang(hang, s, lease)
			var want []string
			if method != "" {
				want = []string{method}
			}
			if !slices.EqualFunc(hang.errors, want, func(found, method string) bool { return strings.HasPrefix(found, method+" of ") }) {
				t.Errorf("Hang finds %q where only %q answers", hang.errors, method)
			}
		})
	}
}
