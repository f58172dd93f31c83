// Package sim plays the scenarios of the model (../model_test.go) repeatably. The root's test package,
// compiled to WebAssembly, runs under a host with random numbers from a seed and a counter as its clock.
// So goroutines, maps, selects and timers take the same order whenever a seed is played, on any machine.
package sim
