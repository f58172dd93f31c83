package main

// drawLife shows the windows of a key, and the callers' answers in each.
func drawLife(s *sheet) {
	s.height = 372
	s.heading("One key's life", "A value passes through these windows until a load replaces it.")
	columns := []struct {
		from, to    float64
		tone, state string
		gets, loads []string
	}{
		{112, 290, "with", "fresh", []string{"the value, at once"}, []string{"none"}},
		{290, 450, "stale", "stale", []string{"the stale value,", "at once"}, []string{"one, in the", "background"}},
		{450, 610, "without", "stale if error", []string{"the new value, or", "the stale value", "if the load fails"}, []string{"one, and callers", "wait for it"}},
		{610, 736, "soft", "expired", []string{"the new value,", "or the error"}, []string{"one, and callers", "wait for it"}},
	}
	s.text("soft small", "start", 24, 108, "value")
	for _, c := range columns {
		s.bar(c.tone, c.from+1, c.to-1, 86, 36, "")
		s.text("ink strong", "middle", (c.from+c.to)/2, 109, c.state)
	}
	s.axis(112, 736, 138)
	s.text("soft small", "start", 112, 155, "commit")

	// span draws a window between two moments.
	span := func(from, to, y float64, name string) {
		s.line("soft-line", from+2, y, to-2, y)
		s.line("soft-line", from+2, y-5, from+2, y+5)
		s.line("soft-line", to-2, y-5, to-2, y+5)
		s.text("ink small", "middle", (from+to)/2, y+17, name)
	}
	span(112, 290, 176, "TTL")
	span(290, 450, 176, "StaleWhileRevalidate")
	span(290, 610, 212, "StaleIfError")

	s.line("line-line", 24, 246, 736, 246)
	s.lines("soft small", "start", 24, 270, "A caller", "gets")
	s.line("line-line", 24, 314, 736, 314)
	s.text("soft small", "start", 24, 338, "Loads")
	for _, c := range columns {
		s.lines("ink small", "start", c.from+4, 270, c.gets...)
		s.lines("ink small", "start", c.from+4, 338, c.loads...)
	}
}
