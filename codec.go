package bellwether

import (
	"encoding/json"
)

// This file is how values become bytes for the store and come back. internal/jsonloss knows what
// JSON, the default, does to the values of a type on that way.

// A Codec turns values into bytes and back, like the two functions of most
// encoding packages: Codec{msgpack.Marshal, msgpack.Unmarshal}.
type Codec struct {
	// Marshal returns the bytes of a value. If it fails, the value goes to those
	// who wait, OnError is told, and each process loads its own.
	Marshal func(any) ([]byte, error)
	// Unmarshal decodes bytes into what its second argument points to. If it
	// fails, OnError is told, of a [driver.ErrCorrupt] with the failure in it, and the
	// value is loaded anew.
	Unmarshal func([]byte, any) error
}

// codecOf is c for values of type V.
func codecOf[V any](c Codec) (func(V) ([]byte, error), func([]byte) (V, error)) {
	if c.Marshal == nil {
		var zero V
		switch any(zero).(type) {
		case []byte:
			return func(v V) ([]byte, error) { return any(v).([]byte), nil },
				func(b []byte) (V, error) { return any(b).(V), nil }
		case string:
			return func(v V) ([]byte, error) { return []byte(any(v).(string)), nil },
				func(b []byte) (V, error) { return any(string(b)).(V), nil }
		}
		c = Codec{json.Marshal, json.Unmarshal}
	}
	return func(v V) ([]byte, error) { return c.Marshal(v) },
		func(b []byte) (v V, err error) { return v, c.Unmarshal(b, &v) }
}
