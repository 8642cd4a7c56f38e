package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/yardmaster/yardmaster/core/wire/yamltree"
)

const maxFileBytes = 1 << 20

// fileValue is what a file says about one setting.
type fileValue struct {
	raw   string
	where string // name:line:column
}

// fileReader walks one YAML document. The grammar is two levels: sections,
// and in them scalars or sequences of scalars.
type fileReader struct {
	name   string
	table  []setting
	found  map[string]fileValue
	faults *problems
}

func readFile(name string, text []byte, table []setting, faults *problems) map[string]fileValue {
	r := &fileReader{name: name, table: table, found: map[string]fileValue{}, faults: faults}
	doc, err := yamltree.Parse(text, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntax(err)
		return r.found
	}
	if len(doc.Docs) > 1 {
		faults.add(r.at(doc.Docs[1].Start), "a second document: one file holds one")
		return r.found
	}
	if len(doc.Docs) == 1 && doc.Docs[0].Body != nil {
		r.top(doc.Docs[0].Body)
	}
	return r.found
}

func (r *fileReader) syntax(err error) {
	if fault, ok := errors.AsType[*yaml.SyntaxError](err); ok && fault.Token != nil {
		r.faults.add(r.at(fault.Token), "%s", fault.Message)
		return
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	r.faults.add(r.name, "%s", line)
}

func (r *fileReader) at(t *token.Token) string {
	if t == nil || t.Position == nil {
		return r.name
	}
	return fmt.Sprintf("%s:%d:%d", r.name, t.Position.Line, t.Position.Column)
}

func (r *fileReader) top(body ast.Node) {
	sections := sectionsOf(r.table)
	r.mapping(body, "the file", func(key string, keyToken *token.Token, node ast.Node) {
		if slices.Contains(sections, key) {
			r.section(key, node)
			return
		}
		r.faults.add(r.at(keyToken), "unknown section %q%s", key, r.hint(key, sections))
	})
}

func (r *fileReader) section(section string, node ast.Node) {
	names := namesOf(r.table, section)
	r.mapping(node, "section "+section, func(name string, keyToken *token.Token, node ast.Node) {
		if !slices.Contains(names, name) {
			r.faults.add(r.at(keyToken), "unknown key %q in section %s%s", name, section, r.hint(name, names))
			return
		}
		r.setting(section+"."+name, keyToken, node)
	})
}

// hint suggests a neighbour, or the section that has a key of that name.
func (r *fileReader) hint(word string, candidates []string) string {
	if near := Nearest(word, candidates); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	for _, s := range r.table {
		if _, name := s.split(); name == word {
			return fmt.Sprintf("; did you mean %q?", s.key)
		}
	}
	return "; there are " + strings.Join(candidates, ", ")
}

// mapping calls each for the entries of node, which must be a mapping (or
// nothing: a section whose lines are all commented out).
func (r *fileReader) mapping(node ast.Node, what string, each func(string, *token.Token, ast.Node)) {
	if _, empty := node.(*ast.NullNode); empty {
		return
	}
	m, ok := node.(ast.MapNode)
	if !ok {
		r.faults.add(r.at(node.GetToken()), "%s must be a mapping of keys to values", what)
		return
	}
	seen := map[string]bool{}
	for entries := m.MapRange(); entries.Next(); {
		at := entries.Key().GetToken()
		key, ok := scalar(entries.Key())
		switch {
		case !ok:
			r.faults.add(r.at(at), "a key must be a plain word")
		case seen[key]:
			r.faults.add(r.at(at), "key %q stands twice", key)
		default:
			seen[key] = true
			each(key, at, entries.Value())
		}
	}
}

func (r *fileReader) setting(key string, keyToken *token.Token, node ast.Node) {
	s := find(r.table, key)
	where := r.at(node.GetToken())
	if where == r.name {
		where = r.at(keyToken)
	}
	switch n := node.(type) {
	case *ast.NullNode:
		return // as if the line were not there
	case *ast.SequenceNode:
		r.sequence(s, where, n)
		return
	default:
		raw, ok := scalar(node)
		if !ok {
			r.faults.add(where, "%s takes a plain %s, no anchor, alias, tag or mapping", key, oneOf(s.value))
			return
		}
		r.found[key] = fileValue{raw: raw, where: where}
	}
}

func (r *fileReader) sequence(s *setting, where string, n *ast.SequenceNode) {
	if !s.value.list() {
		r.faults.add(where, "%s takes one value, not a list", s.key)
		return
	}
	var items []string
	for _, v := range n.Values {
		raw, ok := scalar(v)
		if !ok || strings.Contains(raw, ",") {
			r.faults.add(r.at(v.GetToken()), "%s takes a list of %s", s.key, oneOf(s.value))
			return
		}
		items = append(items, raw)
	}
	r.found[s.key] = fileValue{raw: strings.Join(items, ","), where: where}
}

// scalar is the text of a plain value. Anchors, aliases and tags are not
// plain: a configuration that needs them is better generated.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	default:
		return "", false
	}
}
