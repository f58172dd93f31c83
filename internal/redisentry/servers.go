package redisentry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/bellwether-go/bellwether/internal/rediscluster"
	"github.com/bellwether-go/bellwether/internal/redisdial"
	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/bellwether-go/bellwether/internal/redissub"
	"github.com/redis/go-redis/v9"
)

// This file sends requests to the servers behind a client, and records each server's time on the way.

// Servers are the servers behind a client. They are safe for concurrent use. Servers are a client
// too: a store over them shares their queue, clocks and subscriptions with an engine over the same client.
type Servers struct {
	redis.UniversalClient
	// Queue joins the calls to one server.
	Queue *redispipe.Queue
	// Dials are the failed dials of the client.
	Dials *redisdial.Failures
	// Pushes is the connection for subscriptions.
	Pushes *redissub.Shared

	clocks sync.Map // address (string) to *Clock
}

// Of returns rdb itself if it is Servers. Otherwise it returns new Servers, and adds a hook to rdb.
func Of(rdb redis.UniversalClient) *Servers {
	if s, ok := rdb.(*Servers); ok {
		return s
	}
	return &Servers{UniversalClient: rdb, Queue: redispipe.New(rdb), Dials: redisdial.Of(rdb), Pushes: redissub.Share(rdb)}
}

// Run runs a script on keys of one server. If the reply ends with the server's time, Run returns a
// sighting, of this reply or of an earlier one.
func (s *Servers) Run(ctx context.Context, script *redisscript.Script, keys []string, args ...any) ([]any, Sighting, error) {
	sent := time.Now()
	_, clock, err := s.ServerOf(ctx, keys[0])
	if err != nil {
		return nil, Sighting{}, err
	}
	reply, err := script.Run(ctx, s.Queue, keys, args...).Slice()
	if err != nil {
		rediscluster.Doubt(s.UniversalClient, err)
		return nil, Sighting{}, err
	}
	if len(reply) == 0 {
		return nil, Sighting{}, errors.New("empty reply")
	}
	var seen Sighting
	if text, ok := reply[len(reply)-1].(string); ok {
		us, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, Sighting{}, fmt.Errorf("unexpected reply: %w", err)
		}
		seen = clock.See(Sighting{time.Duration(us) * time.Microsecond, sent, time.Since(sent)})
	}
	return reply, seen, nil
}

// slow is the least duration of a reply that dates no commit: the entry could seem older by so much. A
// claim takes so long if the server is stalled, and the next reply is quicker when the stall is over.
const slow = 100 * time.Millisecond

// Sight returns a recent sighting of name's server: a claim's, or after a long load or a slow claim a new one.
func (s *Servers) Sight(ctx context.Context, name string) (Sighting, error) {
	node, clock, err := s.ServerOf(ctx, name)
	if err != nil {
		return Sighting{}, err
	}
	seen, ok := clock.Recent()
	if ok && seen.Took < slow {
		return seen, nil
	}
	sent := time.Now()
	at, err := SightingBy(node.Time(ctx), sent)
	if err != nil {
		rediscluster.Doubt(s.UniversalClient, err)
		return Sighting{}, err
	}
	return clock.See(at), nil
}

// Changes is the channel of a prefix's commits and invalidations, "" (no notices) for a negative maxNotice.
func (s *Servers) Changes(prefix string, maxNotice int) string {
	if maxNotice < 0 {
		return ""
	}
	return redissub.Channel(s.UniversalClient, prefix+"changes")
}

// ServerOf returns a client of the server with name, and the server's clock.
func (s *Servers) ServerOf(ctx context.Context, name string) (redis.Cmdable, *Clock, error) {
	var node *redis.Client
	var err error
	switch rdb := s.UniversalClient.(type) {
	case rediscluster.Client:
		node, err = rdb.MasterForKey(ctx, name)
	case interface {
		GetShardClientForKey(string) (*redis.Client, error)
	}: // a ring
		node, err = rdb.GetShardClientForKey(name)
	default:
		return s.UniversalClient, s.ClockOf(""), nil
	}
	if err != nil {
		return nil, nil, err
	}
	return node, s.ClockOf(node.Options().Addr), nil
}

// ClockOf returns the clock of the server at addr. addr is "" for a client with a single server.
func (s *Servers) ClockOf(addr string) *Clock {
	if c, ok := s.clocks.Load(addr); ok {
		return c.(*Clock)
	}
	c, _ := s.clocks.LoadOrStore(addr, new(Clock))
	return c.(*Clock)
}
