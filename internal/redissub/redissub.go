// Package redissub listens to a channel of Redis on one connection, which it
// keeps up. A locker hears of releases that way, a store of commits.
package redissub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/adapter"
	"github.com/bellwether-go/bellwether/internal/rediscluster"
)

const (
	// beat is how often the connection is looked at. What has been silent for
	// two beats is pinged, what does not answer within the next is given up:
	// three beats at most, and the one in which the silence began.
	beat = 700 * time.Millisecond

	// minPause and maxPause bound the wait between two attempts to connect.
	minPause = 50 * time.Millisecond
	maxPause = time.Second
)

// Channel is the channel of this name for the database that rdb uses. Redis has
// channels for the whole server: without the number in its name a channel would
// carry what programs tell each other that use other databases, for the same keys. A client
// that wraps another tells the database by its method Options; without one it counts as 0.
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

// A Listener is what Listen tells. Its functions are called one at a time and
// do not block; each may be nil.
type Listener struct {
	// Connect is called before each attempt to connect, and Up when it has led to
	// a subscription.
	Connect, Up func()
	// Down is called when the connection is lost or did not come about, and told
	// why. What is published between a Down and the next Up is lost.
	Down func(error)
	// Message is called with what is published.
	Message func(payload string)
}

// Listen subscribes to channel until ctx ends or rdb is closed, and returns at
// once then. An attempt to connect that is under way, which the client does not
// break off, is left behind for as long as the client's time-outs. A connection
// that is dead without having been closed is found out within three seconds.
func Listen(ctx context.Context, rdb redis.UniversalClient, channel string, l Listener) {
	pause := minPause
	for {
		call(l.Connect)
		connected, err := listen(ctx, rdb, channel, l)
		if l.Down != nil {
			l.Down(err)
		}
		if ctx.Err() != nil || errors.Is(err, redis.ErrClosed) && closed(ctx, rdb) {
			return
		}
		if connected {
			pause = minPause
		}
		// Half of it at random: a fleet that lost its server does not come back
		// in step.
		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// call calls f, unless that is nil.
func call(f func()) {
	if f != nil {
		f()
	}
}

// subscribe begins to subscribe to channel.
//
// All nodes of a cluster carry what is published at one of them. The client
// itself would go to the master of the channel's slot, with all processes of the
// fleet: one node would have to serve them all, and when it dies, none would
// hear anything until its replica is elected, not even of the other nodes' keys.
// So each attempt goes to the master of a slot drawn by lot.
func subscribe(ctx context.Context, rdb redis.UniversalClient, channels ...string) (*redis.PubSub, error) {
	if cluster, ok := rdb.(rediscluster.Client); ok {
		node, err := cluster.MasterForKey(ctx, strconv.Itoa(rand.Int()))
		if err != nil {
			return nil, err
		}
		rdb = node
	}
	// In two steps: the client's Subscribe with a channel does not say why it
	// could not be sent.
	pubsub := rdb.Subscribe(ctx)
	if err := pubsub.Subscribe(ctx, channels...); err != nil {
		pubsub.Close()
		return nil, err
	}
	return pubsub, nil
}

// closed reports whether rdb, of which a connection says that its client is
// closed, is so itself: a cluster's client closes those of nodes that have left.
func closed(ctx context.Context, rdb redis.UniversalClient) bool {
	if _, cluster := rdb.(rediscluster.Client); !cluster {
		return true
	}
	err := adapter.Do(ctx, func() error { return rdb.Ping(ctx).Err() })
	return errors.Is(err, redis.ErrClosed) || ctx.Err() != nil
}

// failsOver reports whether the client asks sentinels which server is the master.
func failsOver(rdb redis.UniversalClient) bool {
	one, ok := rdb.(interface{ Options() *redis.Options })
	return ok && one.Options().Addr == "FailoverClient" // as the client names it in the place of an address
}

// errMoved ends a connection to a server that is not the client's any more.
var errMoved = errors.New("redissub: there is another master")

// moved reports whether the client publishes elsewhere than where own is listened to.
// After a planned failover the old master answers on for about ten seconds, and all
// that is published is published at the new one.
func moved(ctx context.Context, rdb redis.UniversalClient, own string) bool {
	ctx, cancel := context.WithTimeout(ctx, beat)
	defer cancel()
	listeners, err := adapter.Await(ctx, func() (int64, error) { return rdb.Publish(ctx, own, "").Result() }, nil)
	return err == nil && listeners == 0
}

// errSilent ends a connection that does not answer. It was closed by us: the
// client's own error would look as if its owner had closed the client.
var errSilent = errors.New("redissub: the connection is dead")

// listen subscribes on a new connection until that is lost. It reports whether
// the subscription was ever confirmed.
func listen(ctx context.Context, rdb redis.UniversalClient, channel string, l Listener) (connected bool, err error) {
	// The client heeds ctx while it dials, and not while it waits for a server's
	// first words. Its dialer, its hooks and what gives it its password are user
	// code, which may panic.
	channels, own := []string{channel}, ""
	if failsOver(rdb) {
		own = channel + ":" + adapter.Token()
		channels = append(channels, own)
	}
	pubsub, err := adapter.Await(ctx, func() (*redis.PubSub, error) {
		return subscribe(ctx, rdb, channels...)
	}, func(pubsub *redis.PubSub, err error) {
		if err == nil {
			pubsub.Close()
		}
	})
	if err != nil {
		return false, err
	}
	var alive atomic.Bool // something was received since the last beat
	var stuck atomic.Bool // the client has panicked, see receive
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	defer func() {
		cancel()
		if !stuck.Load() {
			<-watched
		}
	}()

	// go-redis looks at this context only to dial. An ended one keeps it from
	// replacing a lost connection inside Receive: that would hide the loss for
	// as long as the dial takes, while the listener believes in its connection.
	noRedial, end := context.WithCancel(context.Background())
	end()

	// In spite of that the client's dialer is called, and told that it need not:
	// when it panics inside Receive, the client has closed the connection, and
	// holds the mutex that Close wants for ever.
	receive := func() (msg any, err error) {
		defer func() {
			if p := recover(); p != nil {
				stuck.Store(true)
				err = fmt.Errorf("redissub: panic in the client: %v\n%s", p, debug.Stack())
			}
		}()
		return pubsub.Receive(noRedial)
	}

	var dead atomic.Pointer[error] // why the connection was closed, nil if it was not from here
	up := make(chan struct{})      // closed when all channels are subscribed to
	go func() {
		defer close(watched)
		defer func() {
			if !stuck.Load() {
				pubsub.Close() // which ends Receive
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
			if own != "" {
				select {
				case <-up:
					if moved(ctx, rdb, own) {
						dead.Store(&errMoved)
						return
					}
				default:
				}
			}
			if alive.Swap(false) {
				silent = 0
				continue
			}
			switch silent++; silent {
			case 2:
				adapter.Do(ctx, func() error { return pubsub.Ping(noRedial) }) // any answer will do
			case 3:
				dead.Store(&errSilent)
				return
			}
		}
	}()

	for {
		msg, err := receive()
		if err != nil {
			if why := dead.Load(); why != nil {
				err = *why
			}
			return connected, err
		}
		alive.Store(true)
		switch msg := msg.(type) {
		case *redis.Subscription:
			if msg.Channel == channel {
				connected = true
				call(l.Up)
			}
			if msg.Count == len(channels) {
				close(up)
			}
		case *redis.Message:
			if l.Message != nil && msg.Channel == channel {
				l.Message(msg.Payload)
			}
		}
	}
}
