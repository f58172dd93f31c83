package main

// drawGet follows one Get through two processes and their engines, from top to bottom.
func drawGet(s *sheet) {
	s.height = 592
	const (
		callersA, a, locker, store, b, callersB = 52, 178, 330, 450, 592, 706
		top, bottom                             = 128, 572
	)
	s.heading("The way of one Get", "No process has the value. Process A becomes the holder and loads the value once for the fleet.",
		"Process B waits for the value, and takes it from the store.")
	for _, p := range []struct {
		x, w       float64
		tone, name string
	}{
		{callersA, 76, "ground", "callers"}, {a, 112, "with", "process A"}, {locker, 76, "soft", "locker"},
		{store, 76, "soft", "store"}, {b, 112, "flight", "process B"}, {callersB, 76, "ground", "callers"},
	} {
		s.line("line-line dashed", p.x, top, p.x, bottom)
		s.rect(p.tone+"-wash", p.x-p.w/2, top-30, p.w, 28)
		s.text("ink strong", "middle", p.x, top-11, p.name)
	}

	// box draws a box on a process's line, from y to y+h, with its text in the middle.
	box := func(tone string, x, y, h float64, text ...string) {
		s.rect(tone+"-wash", x-74, y, 148, h)
		s.lines("ink small", "middle", x, y+h/2+4.5-float64(len(text)-1)*8.5, text...)
	}
	// says draws an arrow with its words above it, on the ground.
	says := func(tone string, from, to, y float64, text string) {
		s.arrow(tone, from, y, to, y)
		middle, w := (from+to)/2, float64(len(text))*7.6
		s.rect("ground", round(middle-w/2), y-19, round(w), 14)
		s.text("ink small", "middle", middle, y-8, text)
	}
	// crowd draws three arrows, for many callers.
	crowd := func(tone string, from, to, y float64) {
		for i := range 3 {
			s.arrow(tone, from, y+float64(i-1)*10, to, y+float64(i-1)*10)
		}
	}

	crowd("with", callersA, a-76, 172)
	crowd("flight", callersB, b+76, 172)
	s.text("ink small", "start", callersA+8, 154, "Get")
	s.text("ink small", "end", callersB-6, 154, "Get")
	box("with", a, 142, 24, "1. near tier: empty")
	box("with", a, 170, 24, "2. one flight per key")
	box("flight", b, 142, 24, "1. near tier: empty")
	box("flight", b, 170, 24, "2. one flight per key")

	says("with", a, store, 222, "3. look: no entry")
	says("flight", b, store, 222, "3. look: no entry")
	says("with", a, locker, 256, "4. acquire: lease")
	says("flight", b, locker, 288, "4. acquire: A holds the lease")
	box("flight", b, 300, 170, "waits for", "the value")
	says("with", a, store, 322, "5. claim: epoch 7")
	box("with", a, 336, 56, "6. load", "from the origin")
	says("with", a, store, 424, "7. commit, epoch 7")
	says("with", a, locker, 458, "8. release")
	crowd("with", a-6, callersA, 448)
	s.text("ink small", "middle", (callersA+a)/2, 430, "the value")
	says("flight", locker, b, 498, "9. the lease is free")
	says("flight", b, store, 530, "10. look: the value")
	crowd("flight", b+6, callersB, 552)
	s.text("ink small", "middle", (b+callersB)/2, 534, "the value")
}
