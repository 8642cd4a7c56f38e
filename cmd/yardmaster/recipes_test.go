package main

import (
	"io"
	"regexp"
	"strings"
	"testing"
)

// away is an address of another machine. Examples use this network.
var away = regexp.MustCompile(`\b10\.0\.0\.\d+:\d+`)

// TestRecipesForSeveralMachinesAreWhole: a process that is told to call other
// machines is called by them as well, so it must listen where they reach it, and
// what is refused there without TLS must say how it is secured.
func TestRecipesForSeveralMachinesAreWhole(t *testing.T) {
	quoted := 0
	check := func(where, line string) {
		kind, rest, _ := strings.Cut(line, " ")
		flags := flagsOf(rest)
		var needs []string
		switch {
		case kind == "planner" && away.MatchString(flags["join"]+flags["peer-listen"]):
			needs = []string{"peer-listen", "listen", "token-file"}
			if flags["join"] == "" {
				needs = needs[:2] // it makes its own token
			}
		case kind == "gateway" && away.MatchString(flags["join"]):
			needs = []string{"peer-listen", "listen", "token-file"}
		case kind == "worker" && away.MatchString(flags["planner"]):
			needs = []string{"id", "listen", "transfer"}
		default:
			return
		}
		quoted++
		for _, name := range needs {
			if value, ok := flags[name]; !ok || strings.HasSuffix(name, "listen") && !away.MatchString(value) {
				t.Errorf("%s: `yardmaster %s` needs --%s with an address that other machines reach", where, line, name)
			}
		}
		if _, plain := flags["tls-plaintext"]; kind != "gateway" && !plain && flags["tls-cert"] == "" {
			t.Errorf("%s: `yardmaster %s` is refused beyond loopback without --tls-cert or --tls-plaintext", where, line)
		}
	}
	for path, text := range documents(t) {
		text = strings.ReplaceAll(text, "\\\n", " ")
		for _, m := range quotedYardmaster.FindAllStringSubmatch(text, -1) {
			check(path, m[1])
		}
	}
	root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
	for _, c := range root.Commands() {
		text := strings.ReplaceAll(c.Long+"\n"+c.Example, "\\\n", " ")
		for line := range strings.Lines(text) {
			if quoted, ok := strings.CutPrefix(strings.TrimSpace(line), "yardmaster "); ok {
				check("help of "+c.CommandPath(), quoted)
			}
		}
	}
	if quoted < 8 {
		t.Errorf("only %d recipes were found", quoted)
	}
}

// flagsOf is the flags of a command line with their values.
func flagsOf(line string) map[string]string {
	out := map[string]string{}
	words := strings.Fields(line)
	for i, word := range words {
		name, ok := strings.CutPrefix(word, "--")
		if !ok {
			continue
		}
		name, value, given := strings.Cut(name, "=")
		if !given && i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			value = words[i+1]
		}
		out[name] = value
	}
	return out
}
