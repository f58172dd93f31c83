package bellwether

import (
	"encoding/json"
)

// This file is the Codec. internal/jsonloss finds the types that JSON, the default, cannot carry.

// A Codec turns values into bytes and back, with the two functions of most encoding packages:
// Codec{msgpack.Marshal, msgpack.Unmarshal}. The functions run concurrently. They must not block: no time of
// the options limits them, and the key's lease lasts until they return.
type Codec struct {
	// Marshal returns the bytes of a value, which must not change afterwards. If it fails, the waiting callers
	// get the value, OnError gets the failure, and each process loads for itself.
	Marshal func(any) ([]byte, error)
	// Unmarshal decodes bytes into its second argument, a pointer. It must not modify the bytes: a store in
	// memory has no others. If it fails, OnError gets a [driver.ErrCorrupt] that wraps the failure, and the
	// value is loaded anew.
	Unmarshal func([]byte, any) error
}

// codecOf returns the functions of the codec for values of type V.
func codecOf[V any](c Codec) (marshal func(any) ([]byte, error), unmarshal func([]byte) (any, error)) {
	if c.Marshal == nil {
		var zero V
		switch any(zero).(type) {
		case []byte:
			return func(v any) ([]byte, error) { return v.([]byte), nil },
				func(b []byte) (any, error) { return b, nil }
		case string:
			return func(v any) ([]byte, error) { return []byte(v.(string)), nil },
				func(b []byte) (any, error) { return string(b), nil }
		}
		c = Codec{json.Marshal, json.Unmarshal}
	}
	return c.Marshal, func(b []byte) (any, error) {
		var v V
		err := c.Unmarshal(b, &v)
		return v, err
	}
}
