// Package sizeof estimates the memory of a value.
package sizeof

import (
	"math"
	"reflect"
	"sync"
	"time"
	"unsafe"
)

// Of returns the bytes of v and of all that v reaches, each once. Only the bytes of strings count again for each string
// that shares them. It skips structs with a field of sync or sync/atomic.
func Of(v any) int {
	switch b := v.(type) {
	case []byte:
		return int(unsafe.Sizeof(b)) + cap(b)
	case string:
		return int(unsafe.Sizeof(b)) + len(b)
	}
	w := walk{seen: map[place]bool{}, todo: []reflect.Value{reflect.ValueOf(&v).Elem()}}
	for len(w.todo) > 0 {
		last := len(w.todo) - 1
		next := w.todo[last]
		w.todo = w.todo[:last]
		w.visit(next)
	}
	return int(min(w.bytes, math.MaxInt))
}

// A place is memory that a value reaches. A struct and its first field have the same address, and
// so have two slices of the same array, but they reach different memory.
type place struct {
	p    unsafe.Pointer
	t    reflect.Type
	size int
}

// A walk visits all memory that a value reaches, without recursion: long lists would overflow the stack.
type walk struct {
	bytes uint64 // strings that share their bytes may sum up to more than an int of 32 bits
	seen  map[place]bool
	todo  []reflect.Value
}

// first reports whether v is not nil and is visited for the first time.
func (w *walk) first(v reflect.Value, size int) bool {
	at := place{v.UnsafePointer(), v.Type(), size}
	if at.p == nil || w.seen[at] {
		return false
	}
	w.seen[at] = true
	return true
}

// visit adds the memory to which v refers directly, and puts the values there on the list.
func (w *walk) visit(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		w.bytes += uint64(v.Len())
	case reflect.Pointer:
		if w.first(v, 0) {
			w.bytes += uint64(v.Type().Elem().Size())
			w.todo = append(w.todo, v.Elem())
		}
	case reflect.Interface:
		if !v.IsNil() {
			w.bytes += uint64(v.Elem().Type().Size())
			w.todo = append(w.todo, v.Elem())
		}
	case reflect.Slice:
		if w.first(v, v.Cap()) {
			w.bytes += uint64(v.Cap()) * uint64(v.Type().Elem().Size())
			w.elements(v)
		}
	case reflect.Array:
		w.elements(v)
	case reflect.Struct:
		// Another goroutine may change a struct that guards itself, with everything that the
		// struct refers to. A map that is written to meanwhile would end the process.
		if guarded(v.Type()) {
			return
		}
		for i := range v.NumField() {
			w.todo = append(w.todo, v.Field(i))
		}
	case reflect.Map:
		if w.first(v, 0) {
			w.bytes += uint64(v.Len()) * uint64(v.Type().Key().Size()+v.Type().Elem().Size())
			for it := v.MapRange(); it.Next(); {
				w.todo = append(w.todo, it.Key(), it.Value())
			}
		}
	}
}

// elements puts the elements of a slice or array on the list, unless their kind reaches nothing: a
// megabyte of bytes is not visited byte by byte.
func (w *walk) elements(v reflect.Value) {
	if v.Type().Elem().Kind() < reflect.Array {
		return
	}
	for i := range v.Len() {
		w.todo = append(w.todo, v.Index(i))
	}
}

// guardedTypes has the results of guarded, by reflect.Type.
var guardedTypes sync.Map

// guarded reports whether a struct type is, or has a field, of package sync or sync/atomic, such as
// a client or a pool: one object for many values, and in use elsewhere. A message of protobuf has a
// [0]sync.Mutex and leads to its type's description. A time's location is shared as well.
func guarded(t reflect.Type) bool {
	if is, ok := guardedTypes.Load(t); ok {
		return is.(bool)
	}
	is := t == reflect.TypeFor[time.Location]() || guards(t)
	for i := range t.NumField() {
		f := t.Field(i).Type
		for f.Kind() == reflect.Array {
			f = f.Elem()
		}
		is = is || guards(f)
	}
	guardedTypes.Store(t, is)
	return is
}

func guards(t reflect.Type) bool { return t.PkgPath() == "sync" || t.PkgPath() == "sync/atomic" }
