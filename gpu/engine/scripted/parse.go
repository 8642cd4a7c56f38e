package scripted

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/yardmaster/yardmaster/core/wire/yamltree"
)

// ErrScript means a script that cannot be played.
var ErrScript = errors.New("bad script")

// ParseScript reads a script in YAML. name stands in errors, which give line
// and column of each fault and, for an unknown key, the key probably meant.
// Errors wrap ErrScript.
func ParseScript(name string, text []byte) (*Script, error) {
	file, err := yamltree.Parse(text)
	if err != nil {
		return nil, positioned(name, err)
	}
	if len(file.Docs) > 1 {
		return nil, fmt.Errorf("%w: %s holds %d YAML documents instead of one", ErrScript, name, len(file.Docs))
	}
	s := &Script{}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return s, nil
	}
	if err := yaml.NodeToValue(file.Docs[0].Body, s, yaml.Strict()); err != nil {
		return nil, positioned(name, err)
	}
	var faults []error
	for _, f := range s.faults() {
		faults = append(faults, fmt.Errorf("%w: %s%s: %s", ErrScript, name, position(file, f.path), f.text))
	}
	return s, errors.Join(faults...)
}

// positioned renders an error of the YAML library on one line.
func positioned(name string, err error) error {
	at := func(t *token.Token, text string) error {
		if t == nil || t.Position == nil {
			return fmt.Errorf("%w: %s: %s", ErrScript, name, text)
		}
		return fmt.Errorf("%w: %s:%d:%d: %s", ErrScript, name, t.Position.Line, t.Position.Column, text)
	}
	if e, ok := errors.AsType[*yaml.UnknownFieldError](err); ok {
		key := e.GetToken().Value
		text := fmt.Sprintf("unknown key %q", key)
		if near := nearest(key, scriptKeys()); near != "" {
			text += fmt.Sprintf("; did you mean %q?", near)
		}
		return at(e.GetToken(), text)
	}
	if e, ok := errors.AsType[yaml.Error](err); ok {
		return at(e.GetToken(), e.GetMessage())
	}
	return fmt.Errorf("%w: %s: %w", ErrScript, name, err)
}

// position is :line:column of the node at path, or of the nearest one above.
func position(file *ast.File, path string) string {
	for path != "$" && path != "" {
		if p, err := yaml.PathString(path); err == nil {
			if node, err := p.FilterFile(file); err == nil && node != nil {
				at := node.GetToken().Position
				return fmt.Sprintf(":%d:%d", at.Line, at.Column)
			}
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return ""
}

// scriptKeys are all keys of the script language.
func scriptKeys() []string {
	var keys []string
	seen := map[reflect.Type]bool{}
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		for f := range t.Fields() {
			if key, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); key != "" {
				keys = append(keys, key)
			}
			walk(f.Type)
		}
	}
	walk(reflect.TypeFor[Script]())
	slices.Sort(keys)
	return slices.Compact(keys)
}

// nearest is the word closest to w, if it is close.
func nearest(w string, words []string) string {
	best, least := "", max(len(w)/2, 2)
	for _, o := range words {
		if d := distance(w, o); d < least {
			best, least = o, d
		}
	}
	return best
}

// distance counts the edits that turn a into b, a swap of neighbours being one.
func distance(a, b string) int {
	var before, prev []int
	cur := make([]int, len(b)+1)
	for j := range cur {
		cur[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, cur = prev, cur, make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
	}
	return cur[len(b)]
}

// UnmarshalYAML reads a duration such as 250ms.
func (d *Duration) UnmarshalYAML(node ast.Node) error {
	v, err := time.ParseDuration(strings.Trim(node.String(), `"'`))
	if err != nil {
		return &yaml.SyntaxError{Message: node.String() + " is no duration: write 250ms or 2s", Token: node.GetToken()}
	}
	*d = Duration(v)
	return nil
}
