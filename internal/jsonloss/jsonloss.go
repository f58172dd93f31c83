// Package jsonloss finds the values of a type that change on their way through JSON.
package jsonloss

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
)

var (
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

const mends = "give a field that is not meant to travel the tag `json:\"-\"`, give its type MarshalJSON and UnmarshalJSON, or set Options.Codec"

// Of returns the loss of a value of type t that is encoded as JSON and decoded: lossy if parts of
// the value change, broken if no value comes back. Strings and []byte are not encoded.
func Of(t reflect.Type) (lossy, broken error) {
	if t == reflect.TypeFor[[]byte]() || t == reflect.TypeFor[string]() {
		return nil, nil
	}
	c := check{seen: map[place]bool{}, hidden: map[hiddenField]bool{}}
	c.visit(place{t: t}, "")
	if len(c.broken) > 0 {
		return nil, fmt.Errorf("bellwether: Options.Fleet.Store cannot keep values of type %v as JSON: %s; %s", t, c.broken[0], mends)
	}
	if len(c.lost) > 0 {
		return fmt.Errorf("bellwether: other processes get values of type %v changed, since Options.Fleet.Store has them as JSON: %s; %s", t, strings.Join(c.lost, "; "), mends), nil
	}
	return nil, nil
}

// A check goes through a type as encoding/json does.
type check struct {
	seen         map[place]bool
	hidden       map[hiddenField]bool // the hidden fields that are already in lost
	lost, broken []string
}

type hiddenField struct {
	of   reflect.Type
	name string
}

// A place is a type in its surroundings.
type place struct {
	t reflect.Type
	// addressable: the encoder also calls methods of *t.
	addressable bool
	// decoded: the surrounding type has a decoder of its own.
	decoded bool
	// inField: it is a part of a struct.
	inField bool
	// optional: a value may be without it.
	optional bool
}

// within returns the place of a part of type t.
func (p place) within(t reflect.Type) place {
	p.t = t
	return p
}

// behind is within for a part that a nil does not have.
func (p place) behind(t reflect.Type, addressable bool) place {
	p.t, p.addressable = t, addressable
	// A nil outside of a struct is no value that a load returns.
	p.optional = p.optional || p.inField
	return p
}

// visit records the losses of p. path is its name. Outside of structs the name is the type's.
func (c *check) visit(p place, path string) {
	if c.seen[p] {
		return
	}
	c.seen[p] = true
	if !p.inField {
		path = p.t.String()
	}
	switch p.t.Kind() {
	case reflect.Pointer:
		c.visit(p.behind(p.t.Elem(), true), path)
		return
	case reflect.Interface:
		c.visitInterface(p, path)
		return
	}
	pointer := reflect.PointerTo(p.t)
	encodedBy := func(m reflect.Type) bool { return p.t.Implements(m) || p.addressable && pointer.Implements(m) }
	decodes := pointer.Implements(jsonUnmarshaler) || pointer.Implements(textUnmarshaler)
	switch {
	case encodedBy(jsonMarshaler):
		c.visitEncoder(p, path, jsonMarshaler)
		return
	case encodedBy(textMarshaler):
		c.visitEncoder(p, path, textMarshaler)
		if !decodes && !p.decoded && p.t.Kind() != reflect.String {
			c.fails(p, path, "has MarshalText and no UnmarshalText")
		}
		return
	}
	p.decoded = p.decoded || decodes
	c.visitParts(p, path)
}

// visitParts records the losses of a type without an encoder, which JSON encodes by its kind.
func (c *check) visitParts(p place, path string) {
	switch p.t.Kind() {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		c.fails(p, path, "cannot be encoded")
	case reflect.Slice:
		c.visit(p.behind(p.t.Elem(), true), path+"[]")
	case reflect.Array:
		if p.t.Len() > 0 {
			c.visit(p.within(p.t.Elem()), path+"[]")
		}
	case reflect.Map:
		c.visitKeys(p, path)
		c.visit(p.behind(p.t.Elem(), false), path+"[]")
	case reflect.Struct:
		c.visitFields(p, path)
	}
}

// visitEncoder records the losses of a type with an encoder. Its own encoder is trusted. But a
// struct also has an embedded field's encoder, which ignores the other fields.
func (c *check) visitEncoder(p place, path string, is reflect.Type) {
	method, ok := p.t.MethodByName(is.Method(0).Name)
	if !ok { // the compiler has generated the pointer's method, which calls the value's
		method, _ = reflect.PointerTo(p.t).MethodByName(is.Method(0).Name)
	}
	if p.t.Kind() != reflect.Struct || !promoted(method) {
		return
	}
	encoder, others := "", false
	for i := range p.t.NumField() {
		f := p.t.Field(i)
		has := f.Anonymous && (f.Type.Implements(is) || reflect.PointerTo(f.Type).Implements(is))
		switch {
		case has && encoder == "":
			encoder = f.Name
		case f.Tag.Get("json") != "-" && !empty(f):
			others = true
		}
	}
	if others {
		c.loses(p, path, fmt.Sprintf("is encoded by %s of the embedded %s, and its other fields come back empty", method.Name, encoder))
	}
}

// promoted reports whether a method is an embedded field's: generated code has no file.
func promoted(method reflect.Method) bool {
	at := method.Func.Pointer()
	f := runtime.FuncForPC(at)
	if f == nil {
		return false
	}
	file, _ := f.FileLine(at)
	return file == "<autogenerated>"
}

// fails records that a value with p in it does not come back.
func (c *check) fails(p place, path, why string) {
	if p.optional {
		c.loses(p, path, why+", so that a value with one does not come back")
	} else {
		c.broken = append(c.broken, p.called(path)+" "+why)
	}
}

// loses records that p comes back changed.
func (c *check) loses(p place, path, what string) {
	c.lost = append(c.lost, p.called(path)+" "+what)
}

func (p place) called(path string) string {
	if name := p.t.String(); path != name {
		path += " (" + name + ")"
	}
	return path
}

func (c *check) visitInterface(p place, path string) {
	switch {
	case p.decoded:
	case p.t.NumMethod() == 0:
		c.loses(p, path, "comes back as a string, float64, bool, []any or map[string]any")
	default:
		c.fails(p, path, "is an interface with methods, and cannot be decoded")
	}
}

// visitKeys records the losses of a map whose keys have no name in JSON, or none that decodes.
func (c *check) visitKeys(p place, path string) {
	key := p.t.Key()
	kind := key.Kind()
	number := reflect.Int <= kind && kind <= reflect.Uintptr
	toText := key.Implements(textMarshaler)
	switch {
	case kind == reflect.String:
	case !number && !toText:
		c.fails(p, path, "has keys that cannot be encoded")
	case toText && !p.decoded && !reflect.PointerTo(key).Implements(textUnmarshaler):
		c.fails(p, path, "has keys with MarshalText and no UnmarshalText")
	}
}

// A field is a JSON field of a struct or of an embedded struct.
type field struct {
	place
	path   string
	name   string // in JSON
	tagged bool   // its tag has the name
	depth  int    // of embedded structs
}

func (c *check) visitFields(p place, path string) {
	named := map[string][]field{}
	var names []string
	for _, f := range c.fields(p, path) {
		if named[f.name] == nil {
			names = append(names, f.name)
		}
		named[f.name] = append(named[f.name], f)
	}
	for _, name := range names {
		fields := named[name]
		one := dominant(fields)
		for i, f := range fields {
			if i == one {
				c.visit(f.place, f.path)
			} else {
				c.loses(f.place, f.path, fmt.Sprintf("is not the only field with the name %q in JSON, and comes back empty", name))
			}
		}
	}
}

// dominant returns which of several fields with the same name JSON takes, -1 for none.
func dominant(fields []field) int {
	one := -1
	better := func(f, than field) bool {
		return f.depth < than.depth || f.depth == than.depth && f.tagged && !than.tagged
	}
	for i, f := range fields {
		if !slices.ContainsFunc(fields, func(other field) bool { return better(other, f) }) {
			if one >= 0 {
				return -1 // two equals
			}
			one = i
		}
	}
	return one
}

// fields returns the JSON fields of a struct and of embedded structs.
func (c *check) fields(p place, path string) (found []field) {
	p.inField = true
	done := map[reflect.Type]bool{}
	level := []field{{place: p, path: path}}
	for len(level) > 0 {
		var next []field
		for _, in := range level {
			for i := range in.t.NumField() {
				f, ok := c.field(in, in.t.Field(i))
				switch {
				case !ok:
				case f.name == "":
					next = append(next, f)
				default:
					found = append(found, f)
				}
			}
		}
		for _, in := range level {
			done[in.t] = true
		}
		level = slices.DeleteFunc(next, func(in field) bool { return done[in.t] })
	}
	return found
}

// field returns a field of the struct in. Its name is empty if its own fields take its place. ok is
// false for a field that JSON ignores, which is a loss unless its tag says so.
func (c *check) field(in field, f reflect.StructField) (_ field, ok bool) {
	tag := f.Tag.Get("json")
	if tag == "-" {
		return field{}, false
	}
	name, options, _ := strings.Cut(tag, ",")
	at, path := in.within(f.Type), in.path+"."+f.Name
	inner := f.Type
	if f.Anonymous && inner.Kind() == reflect.Pointer {
		inner = inner.Elem()
	}
	embedded := f.Anonymous && inner.Kind() == reflect.Struct
	switch {
	case !f.IsExported() && !embedded:
		if field := (hiddenField{in.t, f.Name}); !empty(f) && !c.hidden[field] {
			c.hidden[field] = true
			c.loses(at, path, "is not exported, and comes back empty")
		}
		return field{}, false
	case !embedded || name != "":
		at.optional = at.optional || slices.Contains(strings.Split(options, ","), "omitzero")
		return field{at, path, cmp.Or(name, f.Name), name != "", in.depth}, true
	case inner != f.Type:
		at = at.behind(inner, true)
		if !f.IsExported() && !in.decoded {
			c.fails(at, path, "is an embedded pointer to a type that is not exported, and cannot be decoded")
		}
	}
	return field{place: at, path: path, depth: in.depth + 1}, true
}

// empty reports whether an unexported field has no content to lose.
func empty(f reflect.StructField) bool {
	return f.Name == "_" || f.Type.Size() == 0 || reflect.PointerTo(f.Type).Implements(reflect.TypeFor[sync.Locker]())
}
