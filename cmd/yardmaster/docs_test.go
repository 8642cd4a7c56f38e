package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const repository = "../.."

// documents are the texts whose commands users copy.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(repository, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && path != repository && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return err
		}
		if filepath.Ext(path) != ".md" || strings.Contains(path, "testdata") {
			return nil
		}
		text, err := os.ReadFile(path)
		out[path] = string(text)
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d documents, %v", len(out), err)
	}
	return out
}

var (
	quotedMake       = regexp.MustCompile("(?m)(?:^|`)make ([a-z0-9-]+)")
	quotedYardmaster = regexp.MustCompile("(?m)(?:^|`|\\$ )(?:\\./)?(?:bin/)?yardmaster ([^`\n#|>&]+)")
)

func TestDocumentsQuoteTargetsThatExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range documents(t) {
		for _, m := range quotedMake.FindAllStringSubmatch(text, -1) {
			if !bytes.Contains(makefile, []byte("\n"+m[1]+":")) {
				t.Errorf("%s quotes `make %s`, which does not exist", path, m[1])
			}
		}
	}
}

func TestDocumentsQuoteCommandsThatExist(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range quotedYardmaster.FindAllStringSubmatch(text, -1) {
			line := strings.TrimSpace(m[1])
			if strings.Contains(line, "…") || strings.Contains(line, "...") {
				continue
			}
			checkCommand(t, path, line)
		}
	}
}

// checkCommand looks a quoted command line up in the tree, and its flags.
func checkCommand(t *testing.T, path, line string) {
	t.Helper()
	root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
	c, rest, err := root.Find(strings.Fields(strings.ReplaceAll(line, "'", "")))
	if err != nil || (c == root && !strings.HasPrefix(line, "-")) {
		t.Errorf("%s quotes `yardmaster %s`: no such command (%v)", path, line, err)
		return
	}
	for _, word := range rest {
		if name, ok := strings.CutPrefix(word, "--"); ok {
			name, _, _ = strings.Cut(name, "=")
			if c.Flag(name) == nil && root.PersistentFlags().Lookup(name) == nil && name != "help" && name != "version" {
				t.Errorf("%s quotes `yardmaster %s`: %s has no flag --%s", path, line, c.CommandPath(), name)
			}
		}
	}
}

// TestEveryCommandIsExplained walks the tree: each command that does something
// says what, with an example whose commands and flags exist.
func TestEveryCommandIsExplained(t *testing.T) {
	root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.HasSubCommands() || c.Hidden {
			return
		}
		if c.Short == "" || c.Example == "" {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for line := range strings.Lines(c.Example) {
			if quoted, ok := strings.CutPrefix(strings.TrimSpace(line), "yardmaster "); ok {
				quoted, _, _ = strings.Cut(quoted, " >")
				checkCommand(t, "help of "+c.CommandPath(), quoted)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s has no help", c.CommandPath(), f.Name)
			}
		})
	}
	walk(root)
}
