package tellings

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// At most Most calls wait for an observer that does not return, and none after Close.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		goOn := make(chan struct{})
		told, next := 0, 0
		for i := range Most + 10 {
			q.Add(func() {
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
		q.Close()
		if told != Most {
			t.Errorf("%d tellings when Close has returned, want %d", told, Most)
		}
		q.Add(func() { t.Error("told after Close") })
		synctest.Wait()
	})
}
