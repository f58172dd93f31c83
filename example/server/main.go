// Server is a caching reverse proxy made of bellwether's middleware and a chi router. It stands in
// front of any HTTP upstream. Without an upstream it serves demo pages. Several servers over one
// memcached or Redis are a fleet, which builds each page once for all. "server -h" lists its flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// command is the program. Its status is 0 after -h or a signal, 1 if it cannot serve, 2 for bad flags.
func command(args []string, stdout, stderr io.Writer) int {
	// The signals stay caught to the end: a second one must not change bounded shutdown or exit status.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	c, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage(stdout)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "server: %v\n", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	redis.SetLogger(unheard{})
	if err := run(ctx, c, log); err != nil {
		log.Error("cannot serve", "err", err)
		return 1
	}
	return 0
}

// unheard drops the Redis client's own lines about failed dials. The calls also return the errors.
type unheard struct{}

func (unheard) Printf(context.Context, string, ...any) {}
