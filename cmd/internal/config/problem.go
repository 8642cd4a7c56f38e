package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Problem is one thing wrong with the settings.
type Problem struct {
	Where string // file:line:column, an environment variable, or a flag
	Text  string
}

// Error is every problem of one load, in the order of the sources.
type Error struct{ Problems []Problem }

// Error gives one line a problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.Where + ": " + p.Text
		if p.Where == "" {
			lines[i] = p.Text
		}
	}
	return strings.Join(lines, "\n")
}

// problems collects, up to a bound: a file of nonsense needs no more.
type problems struct{ found []Problem }

const maxProblems = 50

func (p *problems) add(where, format string, args ...any) {
	if len(p.found) < maxProblems {
		p.found = append(p.found, Problem{Where: where, Text: fmt.Sprintf(format, args...)})
	}
}

func (p *problems) err() error {
	if len(p.found) == 0 {
		return nil
	}
	return &Error{Problems: p.found}
}

var errTooLong = errors.New("file is too long")

// readBounded reads a whole file of at most limit bytes.
func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: %w: the limit is %d bytes", name, errTooLong, limit)
	}
	return b, err
}
