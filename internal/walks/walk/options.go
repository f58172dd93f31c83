//go:build !first

package main

import (
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/observe"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// This file is for the working tree, whose options are grouped.

type stats = observe.Stats

func (s *subject) cacheOptions() bellwether.Options {
	return bellwether.Options{TTL: time.Minute, Fleet: bellwether.Fleet{Store: redisstore.New(s.rdb), Locker: s.locker, Namespace: "values"}}
}

func (s *subject) pageOptions() bellwether.HTTPOptions {
	return bellwether.HTTPOptions{Fleet: bellwether.Fleet{Store: redisstore.New(s.rdb), Locker: s.locker, Namespace: "pages"}}
}
