package native

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Part is a policy as people write it: name=weight(param=value param=value).
type Part struct {
	Name   string
	Weight float64            // among several; 1 where none is written
	Params map[string]float64 // by name; nil where none are written
}

// maxParts bounds how many policies decide together.
const maxParts = 16

// ParseParts reads policies with commas between them. Commas in brackets are like
// spaces.
func ParseParts(text string) ([]Part, error) {
	var parts []Part
	for rest, more := text, true; more; {
		var one string
		one, rest, more = cutPart(rest)
		p, err := ParsePart(one)
		if err != nil {
			return nil, err
		}
		if len(parts) == maxParts {
			return nil, fmt.Errorf("more than %d policies", maxParts)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// cutPart cuts at the first comma that is not in brackets.
func cutPart(text string) (first, rest string, more bool) {
	inside := false
	for i, r := range text {
		switch r {
		case '(':
			inside = true
		case ')':
			inside = false
		case ',':
			if !inside {
				return text[:i], text[i+1:], true
			}
		}
	}
	return text, "", false
}

// ParsePart reads one policy. Weights are above 0; true is 1 and false is 0 for a
// parameter.
func ParsePart(text string) (Part, error) {
	text = strings.TrimSpace(text)
	before, params := CutParams(text)
	name, weight, weighed := strings.Cut(strings.TrimSpace(before), "=")
	p := Part{Name: name, Weight: 1}
	var err error
	if weighed {
		p.Weight, err = strconv.ParseFloat(weight, 64)
	}
	switch {
	case err != nil || !(p.Weight > 0) || math.IsInf(p.Weight, 0):
		return Part{}, fmt.Errorf("policy %q: the weight %q is not a number above 0", text, weight)
	case name == "":
		return Part{}, fmt.Errorf("policy %q: a name is missing", text)
	}
	if p.Params, err = ParseParams(params); err != nil {
		return Part{}, fmt.Errorf("policy %q: %w", text, err)
	}
	return p, nil
}

// CutParams cuts the parameters in brackets, which are kept, off what is before them.
func CutParams(text string) (before, params string) {
	before, _, _ = strings.Cut(text, "(")
	return before, text[len(before):]
}

// ParseParams reads parameters in brackets: (param=value param=value), or nothing.
func ParseParams(text string) (map[string]float64, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // there are none
	}
	text, opened := strings.CutPrefix(text, "(")
	text, closed := strings.CutSuffix(text, ")")
	if !opened || !closed {
		return nil, errors.New("a bracket is not closed")
	}
	var params map[string]float64
	for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ' ' || r == ',' }) {
		name, number, _ := strings.Cut(field, "=")
		v, err := parseNumber(number)
		if err != nil || name == "" {
			return nil, fmt.Errorf("%q is not a parameter such as hit_weight=2", field)
		}
		if _, twice := params[name]; twice {
			return nil, fmt.Errorf("%s is given twice", name)
		}
		if params == nil {
			params = map[string]float64{}
		}
		params[name] = v
	}
	return params, nil
}

func parseNumber(text string) (float64, error) {
	switch text {
	case "true":
		return 1, nil
	case "false":
		return 0, nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = strconv.ErrRange
	}
	return v, err
}
