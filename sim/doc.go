// Package sim plays the scenarios of the model (../model_test.go) repeatably. The root's test
// package, compiled to WebAssembly, runs under a host with seeded random numbers and a counter as
// its clock: goroutines, maps, selects and timers take the same order for a seed, on any machine.
package sim
