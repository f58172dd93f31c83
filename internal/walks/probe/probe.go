// Package probe records the functions that a walk enters, by calls of Enter that internal/walks inserts.
package probe

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// A Walk is a way through the library, recorded several times.
type Walk struct {
	Name    string
	Repeats [][]Entry
}

type Entry struct {
	File      string // its path below the module's root
	Function  string
	Goroutine int
}

var (
	mu        sync.Mutex
	recording bool
	entries   []Entry
	last      Entry     // also outside of recordings
	at        time.Time // the time of last
)

// Enter records the entry into a function.
func Enter(file, function string) {
	mu.Lock()
	defer mu.Unlock()
	last, at = Entry{File: file, Function: function}, time.Now()
	if recording {
		last.Goroutine = goroutine()
		entries = append(entries, last)
	}
}

// Record begins a recording.
func Record() {
	mu.Lock()
	defer mu.Unlock()
	recording, entries = true, nil
}

// Recorded ends the recording, and returns it.
func Recorded() []Entry {
	mu.Lock()
	defer mu.Unlock()
	recording = false
	return entries
}

// Last returns the last entry into any function, and its time.
func Last() (Entry, time.Time) {
	mu.Lock()
	defer mu.Unlock()
	return last, at
}

// goroutine returns the number of the calling goroutine. Only its stack trace has this number.
func goroutine() int {
	var trace [64]byte
	fields := bytes.Fields(trace[:runtime.Stack(trace[:], false)]) // "goroutine 18 [running]:"
	n, _ := strconv.Atoi(string(fields[1]))
	return n
}
