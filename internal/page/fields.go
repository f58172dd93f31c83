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

// A headerField is a field as a header map has it.
type headerField struct {
	name    string
	values  []string
	yields  bool // to what is there: a type that is a guess, or that nobody has named
	content bool // it describes the content, which a 304 has none of
}

// hitHeader is the header of a hit, as of a second of the response's life.
type hitHeader struct {
	age, ttl int64 // seconds
	fields   []headerField
}

// values returns the values of one field.
func (h *hitHeader) values(field string) []string {
	for _, f := range h.fields {
		if f.name == field {
			return f.values
		}
	}
	return nil
}

// A decoder reads from rest until that is used up or makes no sense; then it
// is bad and everything it returns is zero.
type decoder[T ~string | ~[]byte] struct {
	rest T
	bad  bool
}

func (d *decoder[T]) byte() byte {
	if len(d.rest) == 0 {
		d.bad = true
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder[T]) uvarint(most uint64) uint64 {
	var head [binary.MaxVarintLen64]byte
	v, n := binary.Uvarint(head[:copy(head[:], d.rest)])
	if n <= 0 || v > most {
		d.spoil()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count is a number of things that take a byte each at least, so that a bad
// number cannot make anybody allocate more than there are bytes.
func (d *decoder[T]) count() int { return int(d.uvarint(uint64(len(d.rest)))) }

// number is the count of what costs more than its bytes: a header's fields, none of
// which is kept of a header over maxHeader.
func (d *decoder[T]) number() int { return int(d.uvarint(uint64(min(len(d.rest), maxHeader)))) }

// spoil makes the decoder bad.
func (d *decoder[T]) spoil() { d.bad, d.rest = true, d.rest[:0] }

func (d *decoder[T]) bytes() T {
	n := d.count()
	if n > len(d.rest) {
		d.spoil()
		return d.rest
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder[T]) string() string { return string(d.bytes()) }

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}
