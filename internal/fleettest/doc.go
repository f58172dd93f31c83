// Package fleettest holds the tests that need a fleet: real processes around a
// real engine, some of which are killed, paused or cut off. It has no code but
// its tests.
package fleettest
