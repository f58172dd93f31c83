package bellwether

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// At most maxTellings calls wait for an observer that does not return, and none after close.
func TestTellings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q tellings
		goOn := make(chan struct{})
		told, next := 0, 0
		for i := range maxTellings + 10 {
			q.add(func() {
				if i == 0 {
					<-goOn
				}
				if i != next {
					t.Errorf("telling %d, want %d", i, next)
				}
				next++
				if told++; i%100 == 7 {
					runtime.Goexit()
				}
			})
		}
		close(goOn)
		q.close()
		if told != maxTellings {
			t.Errorf("%d tellings when close has returned, want %d", told, maxTellings)
		}
		q.add(func() { t.Error("told after close") })
		synctest.Wait()
	})
}
