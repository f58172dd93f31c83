package testserver

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RedisRules are the commands that the adapters on Redis need, as docs/engines.md has
// them for an access control list, and ClusterRules those that a cluster's client
// needs beside them.
const (
	RedisRules = "+select +get +mget +getrange +set +setrange +pexpire +pttl +del +eval +evalsha +time " +
		"+publish +subscribe +unsubscribe +ping +hello +auth"
	ClusterRules = "+cluster|slots +cluster|shards +command +asking"
)

// RedisUser and RedisPassword are of the user that Restrict makes.
const RedisUser, RedisPassword = "app", "secret"

// Restrict makes the servers a user who may do what these rules say, and nothing else,
// with keys and channels of the default Prefix.
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
