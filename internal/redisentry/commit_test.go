package redisentry_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether/driver"
	"github.com/bellwether-go/bellwether/internal/redisentry"
	"github.com/bellwether-go/bellwether/internal/testserver"
	"github.com/bellwether-go/bellwether/stores/redisstore"
	"github.com/redis/go-redis/v9"
)

// With slow replies to the claim and slow commits the entry seems no younger than it is, nor much older.
func TestSend_AfterASlowClaim(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	store := redisstore.New(rdb)
	for _, took := range []time.Duration{50 * time.Millisecond, 3 * time.Second} {
		key := "after a claim of " + took.String()
		_, epoch, err := store.Claim(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		writer := redisentry.Of(rdb)
		now := rdb.Time(t.Context()).Val()
		writer.ClockOf("").See(redisentry.Sighting{Server: time.Duration(now.UnixNano()), Sent: time.Now().Add(-took), Took: took})
		c, err := redisentry.NewCommit(key, driver.Entry{Kind: driver.KindValue, Value: []byte("v"), Epoch: epoch, TTL: time.Hour}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		called := time.Now()
		time.Sleep(100 * time.Millisecond)
		if err := c.Send(t.Context(), writer, redisentry.Name(store.Prefix, key), redisentry.Where{}); err != nil {
			t.Fatal(err)
		}
		old := time.Since(called)
		got, err := store.Get(t.Context(), key)
		if err != nil || got.Age < old || got.Age > old+2*time.Second {
			t.Errorf("%s: an age of %v, %v; want %v or a little more", key, got.Age, err, old)
		}
	}
}

// A change has its length before it, also a change of 100 MB, beyond 8 digits.
func TestLua_LengthOfAChange(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).OwnOrSkip(t).Addr, ReadTimeout: time.Minute})
	defer rdb.Close()
	for _, size := range []int{0, 1e8} {
		got, err := rdb.Eval(t.Context(), redisentry.Lua+`
local text = change('c', digits(1), digits(1), 'k', string.rep('x', ARGV[1]))
return {string.sub(text, 1, 17), #text}`, nil, size).Slice()
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%016dc", got[1].(int64)-16); got[0] != want {
			t.Errorf("a change of %d bytes begins with %q, want %q", size, got[0], want)
		}
	}
}

// A server of 32 bits converts numbers in another way, with the same digits.
func TestLua_Digits(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	small := strings.Replace(redisentry.Lua, "'4503599627370496'", "'what a 32-bit server makes of it'", 1)
	if small == redisentry.Lua {
		t.Fatal("the script does not ask for the size of integers")
	}
	for of, lua := range map[string]string{"64 bits": redisentry.Lua, "32 bits": small} {
		for _, n := range []int64{0, 1, 1_700_000_000_000_000, 1<<53 - 1} {
			got, err := rdb.Eval(t.Context(), lua+"return {digits(tonumber(ARGV[1])), string.format(whole, ARGV[1])}", nil, n).StringSlice()
			if want := []string{fmt.Sprintf("%016d", n), fmt.Sprint(n)}; err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %d is %q, %v; want %q", of, n, got, err, want)
			}
		}
	}
}
