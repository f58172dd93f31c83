package redisscript_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/bellwether-go/bellwether/internal/redispipe"
	"github.com/bellwether-go/bellwether/internal/redisscript"
	"github.com/bellwether-go/bellwether/internal/testserver"
)

// said are the script commands sent by a client.
type said struct{ names []string }

func (s *said) hook(_ context.Context, cmds []redis.Cmder, send func() error) error {
	if len(cmds) == 1 && strings.HasPrefix(cmds[0].Name(), "eval") {
		s.names = append(s.names, cmds[0].Name())
	}
	return send()
}

// TestScript_Run counts the commands of a run: one, except after a server has forgotten the script.
func TestScript_Run(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	heard := &said{}
	rdb.AddHook(testserver.Hook(heard.hook))
	script := redisscript.New(`return KEYS[1] .. ARGV[1]`)
	run := func(want ...string) {
		t.Helper()
		heard.names = nil
		if reply, err := script.Run(t.Context(), redispipe.New(rdb), []string{"k"}, "a").Text(); reply != "ka" || err != nil {
			t.Errorf("%q, %v", reply, err)
		}
		if !slices.Equal(heard.names, want) {
			t.Errorf("commands %q, want %q", heard.names, want)
		}
	}
	run("eval")
	run("evalsha")
	if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	run("evalsha", "eval")
	run("evalsha")
}

// TestScript_NotTaken has the first run fail: the next run sends the script whole.
func TestScript_NotTaken(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	heard := &said{}
	rdb.AddHook(testserver.Hook(heard.hook))
	script := redisscript.New(`return 1`)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := script.Run(ended, redispipe.New(rdb), nil).Err(); err == nil {
		t.Error("a context that has ended runs a script")
	}
	if err := script.Run(t.Context(), redispipe.New(rdb), nil).Err(); err != nil {
		t.Error(err)
	}
	if want := []string{"eval", "eval"}; !slices.Equal(heard.names, want) {
		t.Errorf("commands %q, want %q", heard.names, want)
	}
}

// TestScript_Error has a script that the server knows fail: it runs once.
func TestScript_Error(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Redis(t).Addr})
	defer rdb.Close()
	heard := &said{}
	rdb.AddHook(testserver.Hook(heard.hook))
	script := redisscript.New(`return ARGV[1] == '' and redis.error_reply('ERR empty') or 1`)
	for _, arg := range []string{"a", ""} {
		if err := script.Run(t.Context(), redispipe.New(rdb), nil, arg).Err(); (err != nil) != (arg == "") {
			t.Errorf("%q: %v", arg, err)
		}
	}
	if want := []string{"eval", "evalsha"}; !slices.Equal(heard.names, want) {
		t.Errorf("commands %q, want %q", heard.names, want)
	}
}
