package durations

import (
	"testing"
	"time"
)

func TestAdd(t *testing.T) {
	for _, test := range [][3]time.Duration{
		{0, 0, 0}, {1, 2, 3}, {Forever, 0, Forever}, {Forever, 1, Forever}, {Forever, Forever, Forever}, {Forever - 1, 1, Forever},
	} {
		if got := Add(test[0], test[1]); got != test[2] {
			t.Errorf("Add(%d, %d) = %d, want %d", test[0], test[1], got, test[2])
		}
	}
}
