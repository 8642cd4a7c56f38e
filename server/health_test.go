package server

import (
	"strings"
	"testing"
)

// What is to be said of a check that passes stands behind it.
func TestNewsOfAPassingCheck(t *testing.T) {
	said := ""
	for _, tt := range []struct {
		check Check
		said  string
		want  string
	}{
		{Check{Name: "view"}, "", ""},
		{Check{Name: "view", News: func() string { return said }}, "", ""},
		{Check{Name: "view", News: func() string { return said }}, "of before", ": of before"},
	} {
		said = tt.said
		if got := tt.check.news(); got != tt.want || strings.Contains(got, "\n") {
			t.Errorf("%q: %q", tt.said, got)
		}
	}
}
