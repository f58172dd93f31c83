// Package rediscluster holds what the adapters on Redis know of a cluster's
// client.
package rediscluster

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// A Client is a cluster's client.
type Client interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// Doubt has a cluster's client ask anew which nodes the cluster has, if err says
// that one did not answer. By itself the client does so when a node sends it to
// another, which a dead one does not, and else every ten seconds: for so long it
// would go on asking a master whose replica has taken over. It asks in the
// background, and not more often than every 200 ms.
func Doubt(rdb redis.UniversalClient, err error) {
	cluster, ok := rdb.(Client)
	if !ok || err == nil {
		return
	}
	if _, replied := errors.AsType[redis.Error](err); replied {
		return
	}
	cluster.ReloadState(context.Background())
}
