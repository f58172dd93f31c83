package bellwether_test

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bellwether-go/bellwether"
)

// This file tests that a value seems no younger than it is, whatever waits on the value's way between
// two processes. A value that seems younger is served past its TTL.

// The notice of a commit waits while its flight waits for the store's reply.
func TestAge_AfterANoticeThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, notices, bellwether.Options{
			TTL: time.Minute, MaxWait: time.Minute, Fleet: bellwether.Fleet{NearTTL: time.Minute, EngineTimeout: 10 * time.Second},
		})
		loads, waits := f.processes[0], f.processes[1]
		f.origin.build = 1200 * time.Millisecond
		go loads.Get(context.Background(), "k")
		time.Sleep(10 * time.Millisecond)
		done := make(chan string)
		go func() {
			v, _ := waits.Get(context.Background(), "k")
			done <- v
		}()
		// At 1 s waits reads the store, with the reply at 4 s. The notice comes at 1.2 s.
		time.Sleep(500 * time.Millisecond)
		waits.store.reply.Store(int64(3 * time.Second))
		if v := <-done; v != "v1" {
			t.Fatalf("got %q, want v1", v)
		}
		if got, want := since(waits.Cache), since(loads.Cache); got < want || want < time.Second {
			t.Errorf("an age of %v, want the %v of the process that loaded, after 1 s at least", got, want)
		}
	})
}

// The Codec takes 5 s before the commit.
func TestAge_AfterASlowCodec(t *testing.T) {
	everyWay(t, func(t *testing.T, by way) {
		f := newFleet(t, 2, by, bellwether.Options{TTL: time.Minute, Codec: bellwether.Codec{
			Marshal:   func(v any) ([]byte, error) { time.Sleep(5 * time.Second); return json.Marshal(v) },
			Unmarshal: json.Unmarshal,
		}})
		for _, p := range f.processes {
			p.Get(t.Context(), "k")
		}
		if got, want := since(f.processes[1].Cache), since(f.processes[0].Cache); got < want || want < 5*time.Second {
			t.Errorf("an age of %v, want the %v of the process that loaded, and at least the Codec's 5 s", got, want)
		}
	})
}
