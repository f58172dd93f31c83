package bellwether_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bellwether-go/bellwether"
	"github.com/bellwether-go/bellwether/stores/memstore"
)

type (
	withSecret struct{ Name, secret string }
	withFunc   struct{ Call func() }
)

// New reports fields that JSON loses to OnError, and panics for a type that cannot be decoded.
func TestNew_WhatJSONLoses(t *testing.T) {
	var told []string
	o := bellwether.Options{
		TTL: time.Minute, Fleet: bellwether.Fleet{Store: memstore.New(), Namespace: "test"},
		OnError: func(key string, err error) { told = append(told, key+err.Error()) },
	}
	bellwether.New(func(context.Context, string) (*withSecret, error) { return &withSecret{"a", "b"}, nil }, o).Close()
	if len(told) != 1 || !strings.Contains(told[0], "withSecret.secret (string) is not exported") {
		t.Errorf("OnError is told %q, want the lost field", told)
	}
	defer func() {
		if refused := fmt.Sprint(recover()); len(told) != 1 || !strings.Contains(refused, "withFunc.Call (func()) cannot") {
			t.Errorf("the panic is %q, want the field that does not come back", refused)
		}
	}()
	bellwether.New(func(context.Context, string) (*withFunc, error) { return nil, nil }, o).Close()
}

// New neither reports nor panics if no value is encoded as JSON.
func TestNew_NoValueEncodedAsJSON(t *testing.T) {
	load := func(context.Context, string) (*withFunc, error) { return nil, nil }
	told := func(key string, err error) { t.Errorf("OnError is told %q of %q", err, key) }
	bellwether.New(load, bellwether.Options{TTL: time.Minute, OnError: told}).Close()
	bellwether.New(load, bellwether.Options{
		TTL: time.Minute, OnError: told, Fleet: bellwether.Fleet{Store: memstore.New(), Namespace: "test"},
		Codec: bellwether.Codec{Marshal: func(any) ([]byte, error) { return nil, nil }, Unmarshal: func([]byte, any) error { return nil }},
	}).Close()
}
