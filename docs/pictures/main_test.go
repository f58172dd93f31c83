package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestPictures_Committed holds that the files in docs are the output of "make pictures".
func TestPictures_Committed(t *testing.T) {
	for _, p := range pictures {
		committed, err := os.ReadFile(filepath.Join("..", p.file))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(committed, p.svg()) {
			t.Errorf("docs/%s is not what 'make pictures' writes", p.file)
		}
	}
}

// TestPictures_WellFormed holds that a strict reader accepts the pictures, and that they load nothing.
func TestPictures_WellFormed(t *testing.T) {
	for _, p := range pictures {
		d := xml.NewDecoder(bytes.NewReader(p.svg()))
		elements := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", p.file, err)
			}
			start, is := token.(xml.StartElement)
			if !is {
				continue
			}
			elements++
			for _, a := range start.Attr {
				if a.Name.Local == "href" || a.Name.Local == "src" {
					t.Errorf("%s refers to %s", p.file, a.Value)
				}
			}
		}
		if elements < 30 {
			t.Errorf("%s has %d elements, want a picture", p.file, elements)
		}
	}
}
