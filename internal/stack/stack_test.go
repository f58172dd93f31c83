package stack

import (
	"testing"
	"unsafe"
)

// Calls that need 3 KiB move the stack of a new goroutine, and do not move it after Grow.
func TestGrow(t *testing.T) {
	if !moved(func() {}) {
		t.Error("a new goroutine has room enough: Grow is for nothing")
	}
	if moved(Grow) {
		t.Error("the stack was moved after Grow")
	}
}

// moved reports whether calls move the stack of a goroutine that begins with first.
func moved(first func()) bool {
	result := make(chan bool)
	go func() {
		first()
		var here byte
		before := uintptr(unsafe.Pointer(&here))
		use(3 << 10)
		result <- before != uintptr(unsafe.Pointer(&here))
	}()
	return <-result
}

// use takes a little more than n bytes of stack, in steps like calls.
//
//go:noinline
func use(n int) byte {
	var frame [256]byte
	if n > len(frame) {
		frame[0] = use(n - len(frame))
	}
	return frame[n%len(frame)]
}

func BenchmarkGrow(b *testing.B) {
	for name, first := range map[string]func(){"grown": Grow, "as it comes": func() {}} {
		b.Run(name, func(b *testing.B) {
			done := make(chan byte)
			for b.Loop() {
				go func() {
					first()
					done <- use(5 << 10)
				}()
				<-done
			}
		})
	}
}
