package page

import (
	"encoding/binary"
	"net/http"
)

// This file encodes a kept header as one string without pointers. Header maps, of three objects
// each, were more than half of the garbage collector's work. Beside it is the header of a hit, see hot.go.

// fields are header fields as stored:
//
//	uvarint n, n times: string name, uvarint m, m strings values
//
// A string is its length as uvarint and its bytes. No fields are no bytes. Decoded names and values
// are parts of the string, and take no memory of their own.
type fields string

func fieldsOf(h http.Header) fields {
	if len(h) == 0 {
		return ""
	}
	var room [512]byte // enough for most headers
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

// count returns the number of fields, and of their values.
func (f fields) count() (names, values int) {
	d := decoder[fields]{rest: f}
	names = d.count()
	for range names {
		d.bytes()
		n := d.count()
		values += n
		for range n {
			d.bytes()
		}
	}
	return names, values
}

func (f fields) header() http.Header {
	d := decoder[fields]{rest: f}
	n := d.count()
	h := make(http.Header, n)
	all := make([]string, 0, n) // most fields have one value
	for range n {
		name, first := d.string(), len(all)
		for range d.count() {
			all = append(all, d.string())
		}
		h[name] = all[first:len(all):len(all)]
	}
	return h
}

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

type headerField struct {
	name    string
	values  []string
	yields  bool // to a Content-Type that is already set: the stored type is a guess, or missing
	content bool // it describes the content, and is not in a 304
}

// hitHeader is the header of a hit in one second of the response's life.
type hitHeader struct {
	age, ttl int64 // seconds
	fields   []headerField
}

func (h *hitHeader) values(field string) []string {
	for _, f := range h.fields {
		if f.name == field {
			return f.values
		}
	}
	return nil
}

// A decoder reads from rest until its end or an error. Then it is bad, and returns zero values.
type decoder[T ~string | ~[]byte] struct {
	rest T
	bad  bool
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

// count reads a number of things of a byte or more, so a bad number allocates no more than there is.
func (d *decoder[T]) count() int { return int(d.uvarint(uint64(len(d.rest)))) }

// number is count for header fields, which cost more than their bytes: a header has at most maxHeader.
func (d *decoder[T]) number() int { return int(d.uvarint(uint64(min(len(d.rest), maxHeader)))) }

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
