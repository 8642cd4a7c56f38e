package main

import (
	"strings"
	"testing"
)

// What others called things does not reach a terminal as it is.
func TestTablesShowNoControlCharacters(t *testing.T) {
	var out strings.Builder
	rows := [][]string{{"acme", "müller — 子"}, {"a\x1b[31m\tb", "x\ny"}, {"\xff", "a\u202eb"}}
	if err := new(output).print(&out, nil, []string{"A", "B"}, rows); err != nil {
		t.Fatal(err)
	}
	want := "A               B\nacme            müller — 子\n\"a\\x1b[31m\\tb\"  \"x\\ny\"\n\"\\xff\"          \"a\\u202eb\"\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
