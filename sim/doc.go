// Package sim plays the scenarios of the model (../model_test.go) so that each can be
// repeated: the root's test package, compiled to WebAssembly, runs under a host whose random
// numbers come from a seed and whose clock is a counter. So goroutines take turns, maps and
// selects are gone through, and timers fire in the same order whenever a seed is played, on
// any machine.
package sim
