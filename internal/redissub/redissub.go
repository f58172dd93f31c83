// Package redissub listens to the Redis channels of releases and commits, and keeps the connection up.
//
// shared.go has the listeners, redissub.go their connection.
package redissub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
)

const (
	// beat is the interval between checks of the connection. A connection silent for two beats is
	// pinged. A connection without an answer in the next beat is given up, after at most four beats.
	beat = 700 * time.Millisecond

	// minPause and maxPause bound the wait between two attempts to connect.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// Channel is the channel name for the database of rdb. Redis has channels for the whole server: without
// the database number, a channel would carry messages of programs with other databases, for the same
// keys. A client's wrapper tells the database by its method Options; without it the database is 0.
func Channel(rdb redis.UniversalClient, name string) string {
	db := 0 // a cluster has no other
	switch client := rdb.(type) {
	case interface{ Options() *redis.Options }:
		db = client.Options().DB
	case interface{ Options() *redis.RingOptions }:
		db = client.Options().DB
	}
	return name + ":" + strconv.Itoa(db)
}

// IsRing reports whether rdb is a ring or a wrapper of one. The shards of a ring share no channels.
func IsRing(rdb redis.UniversalClient) bool {
	_, ring := rdb.(interface{ Options() *redis.RingOptions })
	return ring
}

// A Listener receives the events of a channel. Its functions do not block, do not overlap, and may be nil.
type Listener struct {
	// Up is called after a successful subscription.
	Up func()
	// Down is called with the reason when the connection is lost or cannot be made. Messages between a
	// Down and the next Up are lost.
	Down func(error)
	// Message is called with each message.
	Message func(payload string)
}

// listen subscribes to the channels until ctx ends or rdb is closed, then returns at once. It leaves
// behind an attempt to connect under way, which the client does not break off, for the client's
// time-outs. It detects a dead connection within three seconds.
func listen(ctx context.Context, rdb redis.UniversalClient, channels []string, l *link) {
	pause := minPause
	for {
		connected, err := listenOnce(ctx, rdb, channels, l)
		l.lost(err)
		if errors.Is(err, redis.ErrClosed) && closed(ctx, rdb) {
			return
		}
		if connected {
			pause = minPause
		}
		// Half of the pause is random: a fleet that lost its server does not come back in step.
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// subscribe begins to subscribe to the channels at a server.
func subscribe(ctx context.Context, server redis.UniversalClient, channels ...string) (*redis.PubSub, error) {
	// In two steps: the client's Subscribe with a channel hides the error of a failed send.
	pubsub := server.Subscribe(ctx)
	if err := pubsub.Subscribe(ctx, channels...); err != nil {
		pubsub.Close()
		return nil, err
	}
	return pubsub, nil
}

// A place is a server of a cluster's client: the master of a random slot, as all nodes carry each message. By itself
// the client of each process would go to the channel's master, and after its death hear not even of the other nodes'
// keys until a replica is elected.
type place struct {
	cluster rediscluster.Client
	key     string // in the slot
	server  *redis.Client
}

// findPlace returns nil if rdb is no cluster's client.
func findPlace(ctx context.Context, rdb redis.UniversalClient) (*place, error) {
	cluster, ok := rdb.(rediscluster.Client)
	if !ok {
		return nil, nil
	}
	p := &place{cluster: cluster, key: strconv.Itoa(rand.Int())}
	var err error
	p.server, err = cluster.MasterForKey(ctx, p.key)
	return p, err
}

// left reports whether the slot has another master. A node that has left its cluster, or that sentinels have replaced,
// may go on to answer and carry no more messages.
func (p *place) left(ctx context.Context) bool {
	server, err := adapter.Await(ctx, func() (*redis.Client, error) { return p.cluster.MasterForKey(ctx, p.key) }, nil)
	return err == nil && server != p.server
}

// closed reports whether rdb itself is closed, after a connection's client was. A cluster's client
// closes the clients of nodes that have left.
func closed(ctx context.Context, rdb redis.UniversalClient) bool {
	if _, cluster := rdb.(rediscluster.Client); !cluster {
		return true
	}
	err := adapter.Do(ctx, func() error { return rdb.Ping(ctx).Err() })
	return errors.Is(err, redis.ErrClosed)
}

// failsOver reports whether the client asks sentinels for the master.
func failsOver(rdb redis.UniversalClient) bool {
	one, ok := rdb.(interface{ Options() *redis.Options })
	return ok && one.Options().Addr == "FailoverClient" // the client's placeholder for the address
}

// listenOnce subscribes on a new connection until its loss. connected: the subscription was confirmed.
func listenOnce(ctx context.Context, rdb redis.UniversalClient, channels []string, l *link) (connected bool, err error) {
	c := connection{rdb: rdb, channels: channels, last: channels[len(channels)-1]}
	if failsOver(rdb) {
		c.own = c.last + ":" + adapter.Token()
		c.channels = append(slices.Clone(channels), c.own)
	}
	// The client obeys ctx while it dials, but not while it waits for a server's first reply. Its
	// dialer, hooks and credentials provider are user code and may panic.
	c.place, err = adapter.Await(ctx, func() (*place, error) { return findPlace(ctx, rdb) }, nil)
	if err != nil {
		return false, err
	}
	c.pubsub, err = adapter.Await(ctx, func() (*redis.PubSub, error) {
		if c.place != nil {
			return subscribe(ctx, c.place.server, c.channels...)
		}
		return subscribe(ctx, rdb, c.channels...)
	}, func(pubsub *redis.PubSub, err error) {
		if err == nil {
			pubsub.Close()
		}
	})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { c.watch(ctx) })
	defer func() {
		cancel()
		if !c.stuck.Load() {
			watching.Wait()
		}
	}()
	return c.deliver(l)
}

// A connection is a subscription on one connection to a server.
type connection struct {
	rdb      redis.UniversalClient
	place    *place // nil if rdb is no cluster's client
	pubsub   *redis.PubSub
	channels []string // the listeners', and own
	last     string   // of the listeners' channels: a server confirms in the order of the request
	own      string   // a channel of this connection alone, for moved, or empty

	complete atomic.Bool           // all channels are subscribed to
	alive    atomic.Bool           // something was received since the last beat
	dead     atomic.Pointer[error] // why this side closed the connection, or nil
	stuck    atomic.Bool           // the client has panicked, see receive
}

var (
	// errMoved ends a connection to a server that is no longer the client's master.
	errMoved = errors.New("redissub: there is another master")

	// errSilent ends a dead connection: the client's error after our Close would look like an owner's Close.
	errSilent = errors.New("redissub: the connection is dead")

	// errReplaced ends a connection that the client has replaced inside Receive: messages may be lost.
	errReplaced = errors.New("redissub: the client has replaced the connection")
)

// noRedial is an ended context. go-redis reads Receive's context only to dial. An ended context keeps it from
// replacing a lost connection inside Receive: the redial would hide the loss for its whole duration. The client's
// dialer for TLS ignores the context; redisdial's hook heeds it.
var noRedial = ended()

func ended() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}

// deliver gives l the messages until the connection's loss. connected: the subscription was confirmed.
func (c *connection) deliver(l *link) (connected bool, err error) {
	for {
		msg, err := c.receive()
		if err != nil {
			if why := c.dead.Load(); why != nil {
				err = *why
			}
			return connected, err
		}
		c.alive.Store(true)
		switch msg := msg.(type) {
		case *redis.Subscription:
			if msg.Channel == c.last {
				if connected {
					return true, errReplaced
				}
				connected = true
				l.confirmed()
			}
			if msg.Count == len(c.channels) {
				c.complete.Store(true)
			}
		case *redis.Message:
			l.message(msg.Channel, msg.Payload)
		}
	}
}

// receive returns the next message. The client still calls its dialer, with the ended context. If the
// dialer panics, the client has closed the connection and holds for ever the mutex that Close needs.
func (c *connection) receive() (msg any, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.stuck.Store(true)
			err = fmt.Errorf("redissub: panic in the client: %v\n%s", p, debug.Stack())
		}
	}()
	return c.pubsub.Receive(noRedial)
}

// watch closes the connection when ctx ends, the server has moved, or the connection is dead.
func (c *connection) watch(ctx context.Context) {
	defer func() {
		if !c.stuck.Load() {
			c.pubsub.Close() // ends Receive
		}
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for silent := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.moved(ctx) {
			c.dead.Store(&errMoved)
			return
		}
		if c.alive.Swap(false) {
			silent = 0
			continue
		}
		switch silent++; silent {
		case 2:
			adapter.Do(ctx, func() error { return c.pubsub.Ping(noRedial) }) // any answer will do
		case 3:
			c.dead.Store(&errSilent)
			return
		}
	}
}

// moved reports whether the client publishes to another server than the one subscribed to. After a planned
// failover the old master answers for about ten seconds, while all messages go to the new one.
func (c *connection) moved(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	if c.place != nil {
		return c.place.left(ctx)
	}
	if c.own == "" || !c.complete.Load() {
		return false
	}
	listeners, err := adapter.Await(ctx, func() (int64, error) { return c.rdb.Publish(ctx, c.own, "").Result() }, nil)
	return err == nil && listeners == 0
}
