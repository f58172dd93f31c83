package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// A setStore is a Store for Set alone: it issues rising epochs and refuses the first commits.
type setStore struct {
	Store
	epoch    uint64
	refuses  int
	claimErr error
	kept     Entry
}

func (s *setStore) Claim(context.Context, string) (Entry, uint64, error) {
	s.epoch++
	return Entry{}, s.epoch, s.claimErr
}

func (s *setStore) Commit(_ context.Context, _ string, e Entry) error {
	if s.refuses > 0 {
		s.refuses--
		return fmt.Errorf("refused: %w", ErrFenced)
	}
	s.kept = e
	return nil
}

func TestSet(t *testing.T) {
	down := errors.New("down")
	for name, test := range map[string]struct {
		store setStore
		epoch uint64 // 0 if Set fails
		err   error
	}{
		"at once":              {setStore{}, 1, nil},
		"fenced off twice":     {setStore{refuses: 2}, 3, nil},
		"fenced off each time": {setStore{refuses: 100}, 0, ErrFenced},
		"a store that is down": {setStore{claimErr: down}, 0, down},
	} {
		epoch, err := Set(t.Context(), &test.store, "k", Entry{Kind: KindValue, Epoch: 99, TTL: time.Minute})
		if epoch != test.epoch || !errors.Is(err, test.err) || (err == nil) != (test.err == nil) {
			t.Errorf("%s: Set = %d, %v, want %d, %v", name, epoch, err, test.epoch, test.err)
		}
		if test.store.kept.Epoch != test.epoch {
			t.Errorf("%s: epoch %d was committed, want %d", name, test.store.kept.Epoch, test.epoch)
		}
	}
}

// The age of a Set's entry includes the time of its claim.
func TestSet_AgeOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{}
		if _, err := Set(t.Context(), s, "k", Entry{Age: time.Second}); err != nil || s.kept.Age != 21*time.Second {
			t.Errorf("the age is %v, %v; want 21s", s.kept.Age, err)
		}
	})
}

type slowStore struct{ setStore }

func (s *slowStore) Claim(ctx context.Context, key string) (Entry, uint64, error) {
	time.Sleep(20 * time.Second)
	return s.setStore.Claim(ctx, key)
}

// The sum of the longest Age and the time of the claims is no negative Age.
func TestSet_LongestAge(t *testing.T) {
	s := &setStore{}
	if _, err := Set(t.Context(), s, "k", Entry{Kind: KindValue, Age: math.MaxInt64, TTL: time.Minute}); err != nil || s.kept.Age < math.MaxInt64 {
		t.Errorf("the age in the store is %v, %v; want the longest", s.kept.Age, err)
	}
}
