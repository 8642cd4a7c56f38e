package yamltree

import (
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxDepth is how deep brackets may nest, and how many dashes may follow one
	// another on a line.
	MaxDepth = 64
	// MaxTokens is the most tokens of a text: words, brackets, commas, colons. A
	// mapping of as many takes the parser half a second.
	MaxTokens = 16 << 10
)

// Parse parses text. An error over a bound is a *yaml.SyntaxError that names the
// place; a panic of the parser is an error too.
func Parse(text []byte, opts ...parser.Option) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, fmt.Errorf("not YAML: %v", p)
		}
	}()
	tokens := lexer.Tokenize(string(text))
	if err := bounded(tokens); err != nil {
		return nil, err
	}
	return parser.Parse(tokens, 0, opts...)
}

// bounded holds tokens against the bounds.
func bounded(tokens token.Tokens) error {
	brackets, dashes, line := 0, 0, 0
	for i, t := range tokens {
		if i == MaxTokens {
			return fault(t, "more than %d tokens", MaxTokens)
		}
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			brackets++
		case token.SequenceEndType, token.MappingEndType:
			brackets = max(brackets-1, 0)
		case token.SequenceEntryType:
			dashes++
		default:
		}
		if brackets > MaxDepth || dashes > MaxDepth {
			return fault(t, "nested deeper than %d", MaxDepth)
		}
	}
	return nil
}

func fault(t *token.Token, format string, args ...any) error {
	return &yaml.SyntaxError{Message: fmt.Sprintf(format, args...), Token: t}
}
