package storetest_test

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/stores/storetest"
)

// An a32Mutant is the model with a fault of election or Touch that its own faults do not have.
type a32Mutant struct {
	*model
	fault string
	mu2   sync.Mutex
	ends  map[string]time.Time
}

func (m *a32Mutant) Get(ctx context.Context, key string) (driver.Entry, error) {
	m.mu2.Lock()
	end, ok := m.ends[key]
	m.mu2.Unlock()
	if ok && time.Now().After(end) && m.fault == "a touch does not prolong the engine's own expiry" {
		return driver.Entry{}, driver.ErrNotFound
	}
	return m.model.Get(ctx, key)
}

func (m *a32Mutant) Commit(ctx context.Context, key string, e driver.Entry) error {
	err := m.model.Commit(ctx, key, e)
	if err == nil {
		m.mu2.Lock()
		m.ends[key] = time.Now().Add(e.Life())
		m.mu2.Unlock()
	}
	return err
}

func (m *a32Mutant) Touch(ctx context.Context, key string, of uint64, e driver.Entry) error {
	switch m.fault {
	case "a touch leaves the floor":
		m.mu.Lock()
		k := m.marks[key]
		m.mu.Unlock()
		err := m.model.Touch(ctx, key, of, e)
		if err == nil {
			m.mu.Lock()
			now := m.marks[key]
			now.floor = k.floor
			m.marks[key] = now
			m.mu.Unlock()
		}
		return err
	case "a touch takes an epoch that was never given out":
		m.mu.Lock()
		if k, ok := m.marks[key]; ok {
			k.counter = max(k.counter, e.Epoch)
			m.marks[key] = k
		}
		m.mu.Unlock()
	case "a touch keeps the age of before":
		old, _ := m.model.Get(ctx, key)
		e.Age = old.Age
	case "a touch of what is no value makes it one":
		if old, err := m.model.Get(ctx, key); err == nil && old.Kind == driver.KindNotFound && old.Epoch == of {
			return m.model.Commit(ctx, key, e)
		}
	}
	return m.model.Touch(ctx, key, of, e)
}

func (m *a32Mutant) Elect(ctx context.Context, key string, past uint64, ttl time.Duration) (driver.Election, error) {
	switch m.fault {
	case "an elected one's lease never ends":
		if ttl > 0 {
			ttl = 1000 * time.Hour
		}
	case "an election whose caller has left leaves its lease":
		if err := ctx.Err(); err != nil {
			return driver.Election{}, err
		}
		won, err := m.model.Elect(context.WithoutCancel(ctx), key, past, ttl)
		time.Sleep(20 * time.Millisecond) // the reply is under way
		if ctx.Err() != nil {
			return driver.Election{}, ctx.Err()
		}
		return won, err
	case "an election fails over foreign bytes":
		if _, err := m.model.Get(ctx, key); err != nil && err != driver.ErrNotFound && ctx.Err() == nil {
			return driver.Election{}, err
		}
	case "the leases of long keys are one":
		if len(key) > 250 {
			held, err := m.locker.TryAcquire(ctx, key[:250], ttl)
			if err != nil {
				return driver.Election{Held: &driver.HeldError{Key: key, Until: time.Now().Add(ttl)}}, nil
			}
			e, epoch, err := m.model.Claim(ctx, key)
			return driver.Election{Lease: held, Epoch: epoch, Entry: e}, err
		}
	}
	won, err := m.model.Elect(ctx, key, past, ttl)
	switch m.fault {
	case "an election shows an entry as young as at its commit":
		won.Entry.Age = 0
	case "who is held is told that the lease is over":
		if won.Held != nil {
			won.Held.Until = time.Now().Add(-time.Minute)
		}
	}
	return won, err
}

func (m *a32Mutant) CommitAndRelease(ctx context.Context, key string, e driver.Entry, lease driver.Lease) error {
	switch m.fault {
	case "a commit and release cannot be repeated":
		m.mu.Lock()
		again := m.marks[key].floor == e.Epoch
		m.mu.Unlock()
		if again {
			return driver.ErrFenced
		}
	case "a commit and release is not told":
		m.mu.Lock()
		listeners := m.listeners
		m.listeners = nil
		m.mu.Unlock()
		defer func() { m.mu.Lock(); m.listeners = listeners; m.mu.Unlock() }()
	}
	return m.model.CommitAndRelease(ctx, key, e, lease)
}

// a32Parallel says of which faults cases that run beside each other cannot be disturbed.
var a32Faults = map[string]bool{
	"a touch leaves the floor":                             true,
	"a touch takes an epoch that was never given out":      true,
	"a touch keeps the age of before":                      true,
	"a touch of what is no value makes it one":             true,
	"a touch does not prolong the engine's own expiry":     true,
	"an elected one's lease never ends":                    true,
	"an election whose caller has left leaves its lease":   true,
	"an election fails over foreign bytes":                 true,
	"the leases of long keys are one":                      true,
	"an election shows an entry as young as at its commit": true,
	"who is held is told that the lease is over":           true,
	"a commit and release cannot be repeated":              true,
}

func TestAttack32_KitFindsMutants(t *testing.T) {
	if os.Getenv("A32_MUTANT") != "" {
		t.Skip("this is the process of a mutant")
	}
	for _, fault := range append(slices.Sorted(maps.Keys(a32Faults)), "none") {
		t.Run(fault, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAttack32_Mutant$", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), "A32_MUTANT="+fault)
			out, err := cmd.CombinedOutput()
			if fault == "none" {
				if err != nil {
					t.Fatalf("Run fails the model itself:\n%s", out)
				}
				return
			}
			if err == nil {
				t.Fatalf("Run passed a store of which %s", fault)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "--- FAIL") {
					t.Log(strings.TrimSpace(line))
				}
			}
		})
	}
}

func TestAttack32_Mutant(t *testing.T) {
	fault := os.Getenv("A32_MUTANT")
	if fault == "" {
		t.Skip("run by TestAttack32_KitFindsMutants")
	}
	storetest.Run(t, func(testing.TB) storetest.Instance {
		i := newModel("")
		m := &a32Mutant{model: i.Open(t).(*model), fault: fault, ends: map[string]time.Time{}}
		i.Open = func(testing.TB) driver.Store { return m }
		return i
	})
}
