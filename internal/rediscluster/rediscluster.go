// Package rediscluster has the Redis adapters' knowledge of a cluster's client.
package rediscluster

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// A Client is the client of a cluster.
type Client interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ReloadState(ctx context.Context)
}

// Doubt has a cluster's client reload the list of nodes if err means that a node did not answer, or that it has
// lost its cluster. By itself the client reloads at a redirection, which neither node sends, and every ten seconds:
// meanwhile it would ask a master whose replica has taken over. It reloads in the background, at most every 200 ms.
func Doubt(rdb redis.UniversalClient, err error) {
	cluster, ok := rdb.(Client)
	if !ok || err == nil {
		return
	}
	if _, replied := errors.AsType[redis.Error](err); replied && !redis.IsClusterDownError(err) {
		return
	}
	cluster.ReloadState(context.Background())
}
