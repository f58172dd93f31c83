package main

// drawHerd compares an expiry without and with Bellwether, on one axis of time.
func drawHerd(s *sheet) {
	s.height = 476
	const (
		begin, end = 110, 736
		expiry     = 280
	)
	callers := []float64{128, 156, 184, 212, 240, 264, 292, 307, 322, 337, 352, 367, 382, 397, 430, 470, 510, 550, 590, 630, 670, 710}
	s.heading("One key expires", "The same callers come, in any process of a fleet. A load takes longer, the more loads run at one time.")

	// panel draws the value's states, the callers and the names of the rows.
	panel := func(top float64, tone, name, gap, state string, loaded float64, meanwhile caller) {
		s.text(tone+" strong", "start", 24, top+4, name)
		s.text("soft small", "start", 24, top+32, "value")
		s.bar("with", begin, expiry-2, top+16, 24, "fresh")
		s.bar(gap, expiry+2, loaded-2, top+16, 24, state)
		s.bar("with", loaded+2, end, top+16, 24, "fresh")
		s.text("soft small", "start", 24, top+63, "callers")
		for _, x := range callers {
			c := getsFresh
			if x > expiry && x < loaded {
				c = meanwhile
			}
			s.caller(c, x, top+58)
		}
		s.text("soft small", "start", 24, top+83, "loads")
	}

	const top, loaded = 90, 560
	panel(top, "without", "Without Bellwether", "soft", "expired", loaded, waits)
	rank := 0.0
	for _, x := range callers {
		if x > expiry && x < loaded {
			s.rect("without", x-1, top+76+rank*6.5, loaded+rank*12-x, 4.5)
			rank++
		}
	}
	s.line("line-line dashed", expiry, top-8, expiry, top+72+rank*6.5)
	s.text("soft small", "middle", expiry, top-12, "the TTL ends")
	s.text("ink", "start", begin, top+172, "Each caller that finds no fresh value makes a load. All of these callers wait.")

	const below, renewed = 296, 410
	s.line("line-line", 24, below-18, end, below-18)
	panel(below, "with", "With Bellwether", "stale", "stale", renewed, getsStale)
	s.rect("with", 291, below+76, renewed-291, 4.5)
	s.line("line-line dashed", expiry, below-8, expiry, below+86)
	s.text("ink", "start", begin, below+108, "One load in the whole fleet. Callers get the stale value at once meanwhile.")
	s.axis(begin, end, below+126)

	const legend = 456
	for _, l := range []struct {
		kind caller
		x    float64
		text string
	}{{getsFresh, 114, "gets a fresh value at once"}, {getsStale, 320, "gets the stale value at once"}, {waits, 536, "waits for a load"}} {
		s.caller(l.kind, l.x, legend-4)
		s.text("soft small", "start", l.x+11, legend, l.text)
	}
}
