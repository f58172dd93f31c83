package testserver

import "testing"

// TestRedisCluster moves a slot with its key, and has a replica take its master's place.
func TestRedisCluster(t *testing.T) {
	c := RedisCluster(t, 1)
	slot, from, to := c.Way("k")
	c.Do(from, "set", "k", "v")
	c.Migrate(slot, from, to)
	if n := c.Move(slot, from, to); n != 1 {
		t.Errorf("%d keys have moved, want 1", n)
	}
	c.Settle(slot, from, to)
	if got := c.Do(to, "get", "k"); got != "v" {
		t.Errorf("after the move the key is %v", got)
	}
	if _, err := c.try(from, "get", "k"); err == nil {
		t.Error("the former master answers for the slot")
	}

	c.Failover(c.Replicas[0])
	c.Masters[1].Kill()
	c.AwaitMaster(c.Replicas[1])
}
