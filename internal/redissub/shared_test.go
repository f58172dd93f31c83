package redissub

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/redis/go-redis/v9"
)

// A heard is a listener with its events, in their order.
type heard struct {
	*testing.T
	events chan string
	cancel context.CancelFunc
	ended  chan struct{}
}

// hear listens to a channel. before, which may be nil, is called with each message.
func hear(t *testing.T, s *Shared, channel string, events chan string, before func(string)) *heard {
	ctx, cancel := context.WithCancel(t.Context())
	h := &heard{t, events, cancel, make(chan struct{})}
	go func() {
		defer close(h.ended)
		s.Listen(ctx, channel, Listener{
			Up:   func() { events <- channel + " up" },
			Down: func(error) { events <- channel + " down" },
			Message: func(payload string) {
				if before != nil {
					before(payload)
				}
				events <- channel + " " + payload
			},
		})
	}()
	return h
}

func (h *heard) want(want ...string) {
	h.Helper()
	var got []string
	for range want {
		select {
		case event := <-h.events:
			got = append(got, event)
		case <-time.After(5 * time.Second):
			h.Fatalf("after %q nothing, want %q", got, want)
		}
	}
	if !slices.Equal(got, want) {
		h.Fatalf("got %q, want %q", got, want)
	}
}

func (h *heard) end() {
	h.Helper()
	h.cancel()
	select {
	case <-h.ended:
	case <-time.After(5 * time.Second):
		h.Fatal("a listener goes on although its context has ended")
	}
}

func share(t *testing.T) (*redis.Client, *Shared) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).OwnOrSkip(t).Addr})
	t.Cleanup(func() { rdb.Close() })
	s := Share(rdb)
	s.Channels = func() []string { return []string{"a", "b"} }
	return rdb, s
}

// connections is the number of connections with subscriptions.
func connections(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	list, err := rdb.Do(t.Context(), "client", "list", "type", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "id=")
}

// TestShared has one connection for two channels, while a listener is there.
func TestShared(t *testing.T) {
	rdb, s := share(t)
	events := make(chan string, 100)
	a := hear(t, s, "a", events, nil)
	a.want("a up")
	b := hear(t, s, "b", events, nil)
	b.want("b up") // at once: the channel is subscribed to
	if n := connections(t, rdb); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	script := `for i = 1, 100 do redis.call('PUBLISH', 'a', i); redis.call('PUBLISH', 'b', i) end`
	if err := rdb.Eval(t.Context(), script, nil).Err(); err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	for i := range 100 {
		n := string(rune('0' + (i+1)%10)) // the last digit
		for _, channel := range []string{"a", "b"} {
			if event := <-events; !strings.HasPrefix(event, channel) || !strings.HasSuffix(event, n) {
				t.Fatalf("message %d: got %q", i+1, event)
			}
		}
	}
	a.end()
	a.want("a down")
	rdb.Publish(t.Context(), "a", "nobody listens")
	rdb.Publish(t.Context(), "b", "after the other has left")
	b.want("b after the other has left")
	if err := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	b.want("b down", "b up")
	b.end()
	b.want("b down")
	for end := time.Now().Add(5 * time.Second); connections(t, rdb) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connection stays without listeners")
		}
	}
	again := hear(t, s, "b", events, nil)
	again.want("b up")
	rdb.Close()
	again.want("b down")
	select {
	case <-again.ended:
	case <-time.After(5 * time.Second):
		t.Fatal("a listener goes on although its client is closed")
	}
}

// TestShared_ListenerEndsItsGoroutine: a Goexit or a panic of a listener costs the connection, and no more.
func TestShared_ListenerEndsItsGoroutine(t *testing.T) {
	for name, end := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("boom") }} {
		t.Run(name, func(t *testing.T) {
			rdb, s := share(t)
			events := make(chan string, 100)
			a := hear(t, s, "a", events, func(payload string) {
				if payload == "end" {
					end()
				}
			})
			a.want("a up")
			rdb.Publish(t.Context(), "a", "end")
			a.want("a down", "a up")
			rdb.Publish(t.Context(), "a", "afterwards")
			a.want("a afterwards")
			a.end()
		})
	}
}
