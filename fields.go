package bellwether

import (
	"bytes"
	"encoding/binary"
	"net/http"
)

// This file is the header of a response that is kept. A cache holds many
// responses, of which few are asked for again: as a header map each of them has
// three objects full of pointers, which the collector of garbage follows time
// after time, and those were more than half of what it had to do. In one piece
// they are one object, which it does not look into; a map is made for who asks.

// fields are header fields as they are stored:
//
//	uvarint n, n times: string name, uvarint m, m strings values
//
// with strings as uvarint length and bytes. No bytes are no fields. They are
// immutable.
type fields []byte

// fieldsOf returns the fields of h.
func fieldsOf(h http.Header) fields {
	if len(h) == 0 {
		return nil
	}
	var room [512]byte // enough for most; what is kept has no room to spare
	f := binary.AppendUvarint(room[:0], uint64(len(h)))
	for name, values := range h {
		f = appendString(f, name)
		f = binary.AppendUvarint(f, uint64(len(values)))
		for _, v := range values {
			f = appendString(f, v)
		}
	}
	return bytes.Clone(f)
}

// header returns the fields as a map, which is the caller's.
func (f fields) header() http.Header {
	if len(f) == 0 {
		return http.Header{}
	}
	text := string(f) // one copy, of which all strings are parts
	d := decoder{rest: f}
	next := func() string {
		n := len(d.bytes())
		end := len(f) - len(d.rest)
		return text[end-n : end]
	}
	n := d.count()
	h := make(http.Header, n)
	all := make([]string, 0, n) // most have one value
	for range n {
		name, first := next(), len(all)
		for range d.count() {
			all = append(all, next())
		}
		h[name] = all[first:len(all):len(all)]
	}
	return h
}

// values returns the values of one field.
func (f fields) values(field string) (values []string) {
	if len(f) == 0 {
		return nil
	}
	d := decoder{rest: f}
	for range d.count() {
		found := string(d.bytes()) == field
		for range d.count() {
			if v := d.bytes(); found {
				values = append(values, string(v))
			}
		}
	}
	return values
}

// readFields takes the fields that d has next, with their memory.
func readFields(d *decoder) fields {
	all := d.rest
	n := d.count()
	for range n {
		d.bytes()
		for range d.count() {
			d.bytes()
		}
	}
	if n == 0 {
		return nil
	}
	return all[: len(all)-len(d.rest) : len(all)-len(d.rest)]
}
