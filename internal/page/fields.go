package page

import (
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
// with strings as uvarint length and bytes. No bytes are no fields. The names and
// values that are read from it are parts of it, and take no memory of their own.
type fields string

// fieldsOf returns the fields of h.
func fieldsOf(h http.Header) fields {
	if len(h) == 0 {
		return ""
	}
	var room [512]byte // enough for most
	b := binary.AppendUvarint(room[:0], uint64(len(h)))
	for name, values := range h {
		b = appendString(b, name)
		b = binary.AppendUvarint(b, uint64(len(values)))
		for _, v := range values {
			b = appendString(b, v)
		}
	}
	return fields(b)
}

// count returns the number of the fields' names.
func (f fields) count() int {
	d := decoder[fields]{rest: f}
	return d.count()
}

// header returns the fields as a map, which is the caller's.
func (f fields) header() http.Header {
	d := decoder[fields]{rest: f}
	n := d.count()
	h := make(http.Header, n)
	all := make([]string, 0, n) // most have one value
	for range n {
		name, first := d.string(), len(all)
		for range d.count() {
			all = append(all, d.string())
		}
		h[name] = all[first:len(all):len(all)]
	}
	return h
}

// values returns the values of one field.
func (f fields) values(field string) (values []string) {
	d := decoder[fields]{rest: f}
	for range d.count() {
		found := d.string() == field
		for range d.count() {
			if v := d.string(); found {
				values = append(values, v)
			}
		}
	}
	return values
}

// readFields takes the fields that d has next.
func readFields(d *decoder[[]byte]) fields {
	all := d.rest
	n := d.number()
	for range n {
		d.bytes()
		for range d.number() {
			d.bytes()
		}
	}
	if n == 0 {
		return ""
	}
	return fields(all[:len(all)-len(d.rest)])
}
