package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yardmaster/yardmaster/raftstore/identity"
)

func (a *app) clusterToken() *cobra.Command {
	c := noun("token", "Make and change the secret that makes a process a member", a.tokenNew(), a.tokenShow(),
		a.tokenChange("stage", "Add a fresh token at the end of a file: trusted, not yet in use", stageToken,
			"The first of three steps: every member must trust the new token before one uses it."),
		a.tokenChange("switch", "Move the last token of a file to its first line: in use from now on", switchToken,
			"The second of three steps: members use the new token and still trust the old."),
		a.tokenChange("finish", "Drop all but the first token of a file: what was in use before is worth nothing", finishToken,
			"The last of three steps: whoever has only an old token is a member no longer."))
	c.Long = `Make and change the secret that makes a process a member.

The token file is the same on all members, who read it again every few seconds.
To change the token without a restart, do each step on one machine, copy the file
to all members, and wait a minute:

  yardmaster cluster token stage cluster.token    the new one is trusted
  yardmaster cluster token switch cluster.token   the new one is in use
  yardmaster cluster token finish cluster.token   the old one is worth nothing

No command prints a token; show prints fingerprints.`
	return c
}

// maxTokenFile bounds a token file, in bytes.
const maxTokenFile = 64 << 10

func (a *app) tokenNew() *cobra.Command {
	return &cobra.Command{
		Use:   "new FILE",
		Short: "Write a file with a fresh token",
		Long: `Write a file with a fresh token, which its owner alone may read. Copy it to every
machine before planners are started there with --token-file. A planner that
founds a cluster alone makes one by itself.`,
		Example: "  yardmaster cluster token new cluster.token",
		Args:    operand("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); err == nil {
				return usage(fmt.Errorf("%s is there already: another token would be another cluster", args[0]))
			}
			if err := writeLines(args[0], []string{identity.NewToken()}); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s holds a new cluster's token: whoever has it can join\n", args[0])
			return nil
		},
	}
}

func (a *app) tokenShow() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:     "show FILE",
		Short:   "Print the fingerprints of a file's tokens, the one in use first",
		Long:    "Print the fingerprints of a file's tokens, the one in use first, to compare the\nfiles of two machines. The tokens are not shown.",
		Example: "  yardmaster cluster token show cluster.token",
		Args:    operand("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			prints, err := fingerprints(args[0])
			if err != nil {
				return err
			}
			type token struct {
				Fingerprint string `json:"fingerprint"`
				Use         string `json:"use"`
			}
			shown := []token{}
			var rows [][]string
			for i, p := range prints {
				use := "trusted"
				if i == 0 {
					use = "in use"
				}
				shown = append(shown, token{p, use})
				rows = append(rows, []string{p, use})
			}
			return out.print(a.out, shown, []string{"FINGERPRINT", "USE"}, rows)
		},
	}
	out.flag(c)
	return c
}

// fingerprints are those of the authorities that a file's tokens make.
func fingerprints(file string) ([]string, error) {
	id, err := identity.Open(identity.Config{NodeID: "fingerprint", TokenFile: file})
	if err != nil {
		return nil, err
	}
	return id.Status().Authorities, nil
}

// tokenChange is a verb that rewrites a token file.
func (a *app) tokenChange(verb, short string, change func(tokenFile) (tokenFile, error), long string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " FILE", Short: short, Long: long + " Copy the file to all members\nthen; `yardmaster cluster token --help` shows the order.",
		Example: "  yardmaster cluster token " + verb + " cluster.token",
		Args:    operand("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := readTokens(args[0])
			if err != nil {
				return err
			}
			if f, err = change(f); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := writeLines(args[0], f.lines()); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s holds %s; copy it to all members, and wait a minute before the next step\n", args[0], plural(len(f.tokens), "token", "tokens"))
			return nil
		},
	}
}

// tokenFile is what a token file says: its tokens, the one in use first, and the
// mark of a change that is under way, which stands above the last.
type tokenFile struct {
	tokens []string
	mark   string // markStaged, markSwitched, or empty
}

const (
	markStaged   = "# staged: trusted, and not in use yet; the next step is switch"
	markSwitched = "# of before: still trusted; the next step is finish"
)

func (f *tokenFile) lines() []string {
	if f.mark == "" {
		return f.tokens
	}
	return slices.Insert(slices.Clone(f.tokens), len(f.tokens)-1, f.mark)
}

var (
	errNothingStaged = errors.New("the file holds one token: stage another first")
	errNotSwitched   = errors.New("the staged token is not in use yet, and this would drop it: switch first, copy the file to all members, and wait a minute")
	errSwitched      = errors.New("the file has been switched already: finish is next")
)

func stageToken(f tokenFile) (tokenFile, error) {
	if len(f.tokens) > 1 {
		return f, errors.New("a change is under way: " + strconv.Itoa(len(f.tokens)) + " tokens are there; switch and finish it first")
	}
	return tokenFile{append(slices.Clone(f.tokens), identity.NewToken()), markStaged}, nil
}

func switchToken(f tokenFile) (tokenFile, error) {
	switch {
	case len(f.tokens) < 2:
		return f, errNothingStaged
	case f.mark == markSwitched:
		return f, errSwitched
	}
	last := len(f.tokens) - 1
	return tokenFile{append([]string{f.tokens[last]}, f.tokens[:last]...), markSwitched}, nil
}

func finishToken(f tokenFile) (tokenFile, error) {
	switch {
	case len(f.tokens) < 2:
		return f, errNothingStaged
	case f.mark == markStaged:
		return f, errNotSwitched
	}
	return tokenFile{tokens: f.tokens[:1]}, nil
}

// readTokens reads a token file. Of comments only our own marks count.
func readTokens(file string) (out tokenFile, err error) {
	f, err := os.Open(file)
	if err != nil {
		return out, err
	}
	defer f.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return out, err
	}
	for line := range bytes.Lines(text) {
		token := strings.TrimSpace(string(line))
		switch {
		case token == markStaged, token == markSwitched:
			out.mark = token
			continue
		case token == "" || token[0] == '#':
			continue
		}
		if err := identity.CheckToken(token); err != nil {
			return out, fmt.Errorf("%s: %w", file, err)
		}
		out.tokens = append(out.tokens, token)
	}
	if len(out.tokens) == 0 {
		return out, fmt.Errorf("%s: %w: there is none in it", file, identity.ErrToken)
	}
	return out, nil
}

// writeLines replaces a file that its owner alone may read.
func writeLines(file string, lines []string) error {
	return writeWhole(file, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
		return err
	}, nil)
}
