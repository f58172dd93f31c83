package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// The tests in this file hold README.md and the guides to short sentences with nouns.

var (
	words     = regexp.MustCompile(`[A-Za-z']+`)
	sentences = regexp.MustCompile(`[.!?](?:["')*]*)(?:\s+|$)`)
	pictures  = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	links     = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	marker    = regexp.MustCompile(`(?s)<!--.*?-->`)
	item      = regexp.MustCompile(`^\s*(?:[-*]|\d+\.) +`)
)

// prose returns the sentences of a document and its table cells, without headings, code and table heads.
func prose(text string) (all []string) {
	text = marker.ReplaceAllString(fence.ReplaceAllString(text, "\n"), "")
	text = links.ReplaceAllString(pictures.ReplaceAllString(text, ""), "$1")
	text = inline.ReplaceAllStringFunc(text, func(code string) string {
		return "x" // a single word, whatever its length
	})
	var paragraph strings.Builder
	end := func() {
		for _, s := range sentences.Split(paragraph.String(), -1) {
			if n := len(regexp.MustCompile(`[\w'-]*\w[\w'.,-]*`).FindAllString(s, -1)); n > 2 {
				all = append(all, strings.TrimSpace(s))
			}
		}
		paragraph.Reset()
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "|---"):
			end()
		case strings.HasPrefix(line, "|"):
			end()
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				paragraph.WriteString(cell)
				end()
			}
		case strings.HasPrefix(line, "    "):
			end() // code
		case item.MatchString(line):
			end()
			paragraph.WriteString(item.ReplaceAllString(line, ""))
		default:
			paragraph.WriteString(" " + line)
		}
	}
	end()
	return all
}

// length returns how many words a sentence has.
func length(sentence string) int {
	return len(regexp.MustCompile(`[\w'-]*\w[\w'.,-]*`).FindAllString(sentence, -1))
}

func TestProse_Sentences(t *testing.T) {
	for _, document := range documents(t) {
		total, all := 0, prose(read(t, document))
		for _, s := range all {
			n := length(s)
			total += n
			if n > 30 {
				t.Errorf("%s has a sentence of %d words: %s", document, n, s)
			}
		}
		mean := float64(total) / float64(max(1, len(all)))
		t.Logf("%-24s %4d sentences, %.1f words in the mean", document, len(all), mean)
		if mean > 20 {
			t.Errorf("%s has sentences of %.1f words in the mean, want at most 20", document, mean)
		}
	}
}

// TestProse_Words holds the number of words that replace nouns.
func TestProse_Words(t *testing.T) {
	for _, document := range documents(t) {
		text := read(t, document)
		all := float64(len(words.FindAllString(text, -1)))
		for _, w := range []struct {
			words string
			most  float64 // per thousand words
		}{
			{`what`, 2},
			{`nobody|everybody|anybody|who|whom|whoever|whose`, 1.5},
			{`that|those|these|one|it|its`, 45},
		} {
			n := len(regexp.MustCompile(`(?i)\b(?:`+w.words+`)\b`).FindAllString(text, -1))
			if rate := 1000 * float64(n) / all; rate > w.most {
				t.Errorf("%s has %.1f of %q in a thousand words, want at most %v", document, rate, w.words, w.most)
			}
		}
	}
}
