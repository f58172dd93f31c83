package testserver

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RedisRules are the commands needed by the Redis adapters, as listed in docs/engines.md for an
// access control list. ClusterRules are the additional commands of a cluster's client, and ReplicaRules of a cluster's
// client that reads from replicas.
const (
	RedisRules = "+select +get +mget +getrange +set +setrange +pexpire +pttl +del +eval +evalsha +time " +
		"+publish +subscribe +unsubscribe +ping +hello +auth"
	ClusterRules = "+cluster|slots +cluster|shards +command +asking"
	ReplicaRules = "+readonly"
)

// RedisUser and RedisPassword are the credentials of Restrict's user.
const RedisUser, RedisPassword = "app", "secret"

// Restrict creates RedisUser on the servers, with only the rules' permissions for the default Prefix.
func Restrict(tb testing.TB, rules string, servers ...*Server) {
	tb.Helper()
	for _, s := range servers {
		admin := redis.NewClient(&redis.Options{Addr: s.MustOwn(tb).Addr})
		args := []any{"acl", "setuser", RedisUser, "reset", "on", ">" + RedisPassword, "~bellwether:*", "&bellwether:*"}
		for _, rule := range strings.Fields(rules) {
			args = append(args, rule)
		}
		err := admin.Do(tb.Context(), args...).Err()
		admin.Close()
		if err != nil {
			tb.Fatal(err)
		}
	}
}
