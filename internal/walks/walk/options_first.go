//go:build first

package main

import (
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/redisstore"
)

// This file is for the first edition, whose options were not grouped.

type stats = bellwether.Stats

func (s *subject) cacheOptions() bellwether.Options {
	return bellwether.Options{TTL: time.Minute, Store: redisstore.New(s.rdb), Locker: s.locker, Namespace: "values"}
}

func (s *subject) pageOptions() bellwether.HTTPOptions {
	return bellwether.HTTPOptions{Options: bellwether.Options{Store: redisstore.New(s.rdb), Locker: s.locker, Namespace: "pages"}}
}
