package main

// drawTakeover shows a stopped holder, the takeover after its lease, and its refused late commit.
func drawTakeover(s *sheet) {
	s.height = 470
	const (
		begin, end           = 112, 736
		lockerY, aY          = 104, 184
		storeY, bY           = 282, 388
		acquired, stopped    = 130, 250
		leaseEnd, bCommit    = 410, 556
		awake, refused, tall = 612, 650, 28
	)
	s.heading("The holder stops", "A dead process stays silent. A paused process comes back late, and the store refuses its commit.")
	for _, lane := range []struct {
		y    float64
		name string
		rest float64 // where the line continues
	}{{lockerY, "locker", begin}, {aY, "process A", awake}, {storeY, "store", begin}, {bY, "process B", begin}} {
		s.text("ink strong", "start", 24, lane.y+19, lane.name)
		s.line("line-line", lane.rest, lane.y+tall/2, end, lane.y+tall/2)
	}
	s.line("line-line", begin, aY+tall/2, stopped, aY+tall/2)

	lane := func(tone string, from, to, y float64, text string) {
		s.rect("ground", from, y, to-from, tall)
		s.bar(tone, from, to, y, tall, text)
	}
	lane("with", acquired, leaseEnd, lockerY, "lease of A")
	lane("flight", leaseEnd+4, bCommit+10, lockerY, "lease of B")
	s.line("line-line dashed", leaseEnd+2, lockerY-8, leaseEnd+2, bY+tall+6)
	s.text("soft small", "middle", leaseEnd+2, lockerY-12, "the lease ends")

	lane("stale", begin, bCommit, storeY, "stale entry")
	lane("flight", bCommit+4, end, storeY, "entry of epoch 8")

	lane("with", acquired+18, stopped, aY, "load")
	s.cross(stopped+2, aY+tall/2)
	s.line("soft-line dashed", stopped+14, aY+tall/2, awake-8, aY+tall/2)
	s.text("bad strong", "start", stopped-6, aY-8, "A stops")
	s.caller(getsFresh, awake, aY+tall/2)
	s.text("ink small", "middle", awake, aY-8, "A wakes up")

	s.arrow("with", acquired+8, aY+tall, acquired+8, storeY-2)
	s.text("ink small", "start", acquired+16, aY+tall+30, "claim: epoch 7")
	s.arrow("bad", refused, aY+tall, refused, storeY-14)
	s.cross(refused, storeY-8)
	s.lines("bad small strong", "end", refused-10, aY+tall+26, "late commit, epoch 7:", "refused")

	lane("soft", acquired+50, leaseEnd, bY, "waits for the value or for the lease")
	lane("flight", leaseEnd+34, bCommit-14, bY, "load")
	s.arrow("flight", leaseEnd+20, bY, leaseEnd+20, storeY+tall+2)
	s.text("ink small", "start", leaseEnd+28, bY-22, "claim: epoch 8")
	s.arrow("flight", bCommit, bY, bCommit, storeY+tall+2)
	s.text("ink small", "start", bCommit+8, bY-22, "commit, epoch 8")
	s.text("ink small", "start", acquired+50, bY-10, "callers of B get the stale value")

	s.axis(begin, end, 440)
}
