package redislock_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/lockers/lockertest"
)

// TestConformance_Access runs as a user with only the documented permissions, in database 1.
func TestConformance_Access(t *testing.T) {
	server := testserver.Redis(t).OwnOrSkip(t)
	testserver.Restrict(t, testserver.RedisRules, server)
	for name, tokens := range map[string]bool{"without Tokens": false, "Tokens": true} {
		t.Run(name, func(t *testing.T) {
			lockertest.Run(t, func(tb testing.TB) driver.Locker {
				o := redis.Options{Addr: server.Addr, DB: 1, Username: testserver.RedisUser, Password: testserver.RedisPassword}
				return withTokens(over(tb, redis.NewClient(&o)), tokens)
			})
		})
	}
}
