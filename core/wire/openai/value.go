package openai

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/core/errs"
)

// bad is a request at fault in one field.
func bad(param, format string, args ...any) *errs.Error {
	return &errs.Error{Kind: errs.BadRequest, Client: fmt.Sprintf(format, args...), Param: param, Code: "invalid_value"}
}

// unsupported is a request for what this engine does not have. To ignore it
// would be to answer something else than was asked.
func unsupported(param, what string) *errs.Error {
	return &errs.Error{
		Kind: errs.BadRequest, Client: what + " is not supported by this engine", Param: param, Code: "unsupported_parameter",
	}
}

// value is the JSON of one field, known to be well formed, with its name.
type value struct {
	raw   jsontext.Value
	param string
}

func (v value) null() bool { return v.raw.Kind() == 'n' }

func (v value) wrong(want string) *errs.Error {
	return bad(v.param, "%s must be %s, not %s", v.param, want, kindName(v.raw.Kind()))
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	default:
		return "nothing"
	}
}

func (v value) str() (string, error) {
	if v.raw.Kind() != '"' {
		return "", v.wrong("a string")
	}
	b, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil {
		return "", bad(v.param, "%s is not a valid string", v.param)
	}
	return string(b), nil
}

// strMax is a string of at most n bytes.
func (v value) strMax(n int) (string, error) {
	s, err := v.str()
	if err == nil && len(s) > n {
		return "", bad(v.param, "%s has %d bytes, at most %d are allowed", v.param, len(s), n)
	}
	return s, err
}

func (v value) boolean() (bool, error) {
	switch v.raw.Kind() {
	case 't':
		return true, nil
	case 'f':
		return false, nil
	default:
		return false, v.wrong("a boolean")
	}
}

// number is a finite number within [lo, hi].
func (v value) number(lo, hi float64) (float64, error) {
	if v.raw.Kind() != '0' {
		return 0, v.wrong("a number")
	}
	f, err := strconv.ParseFloat(string(v.raw), 64)
	if err != nil || f < lo || f > hi {
		return 0, bad(v.param, "%s must be between %g and %g", v.param, lo, hi)
	}
	return f, nil
}

// integer is a whole number within [lo, hi], read exactly. 3.0 is one.
func (v value) integer(lo, hi int64) (int64, error) {
	if v.raw.Kind() != '0' {
		return 0, v.wrong("an integer")
	}
	n, err := strconv.ParseInt(string(v.raw), 10, 64)
	if errors.Is(err, strconv.ErrSyntax) {
		f, ferr := strconv.ParseFloat(string(v.raw), 64)
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return 0, bad(v.param, "%s must be an integer", v.param)
		}
		n, err = int64(f), nil
	}
	if err != nil || n < lo || n > hi {
		return 0, bad(v.param, "%s must be between %d and %d", v.param, lo, hi)
	}
	return n, nil
}

// items calls f for each element of an array of at most limit.
func (v value) items(limit int, f func(i int, item value) error) error {
	if v.raw.Kind() != '[' {
		return v.wrong("an array")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	if _, err := dec.ReadToken(); err != nil {
		return malformed(err)
	}
	for i := 0; dec.PeekKind() != ']'; i++ {
		if i == limit {
			return bad(v.param, "%s has more than %d elements", v.param, limit)
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return malformed(err)
		}
		if err := f(i, value{raw, v.param}); err != nil {
			return err
		}
	}
	return nil
}

// members calls f for each member of an object of at most limit. The item's
// param is the member's name.
func (v value) members(limit int, f func(item value) error) error {
	if v.raw.Kind() != '{' {
		return v.wrong("an object")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v.raw))
	if _, err := dec.ReadToken(); err != nil {
		return malformed(err)
	}
	for i := 0; dec.PeekKind() != '}'; i++ {
		if i == limit {
			return bad(v.param, "%s has more than %d members", v.param, limit)
		}
		name, err := dec.ReadToken()
		if err != nil {
			return malformed(err)
		}
		key := name.String()
		raw, err := dec.ReadValue()
		if err != nil {
			return malformed(err)
		}
		if err := f(value{raw, key}); err != nil {
			return err
		}
	}
	return nil
}

// ids is an array of token ids.
func (v value) ids(limit int) ([]int32, error) {
	var out []int32
	err := v.items(limit, func(_ int, item value) error {
		id, err := item.integer(0, math.MaxInt32)
		out = append(out, int32(id))
		return err
	})
	return out, err
}

// anything decodes into Go's general types.
func (v value) anything() (any, error) {
	var out any
	if err := json.Unmarshal(v.raw, &out); err != nil {
		return nil, bad(v.param, "%s cannot be read", v.param)
	}
	return out, nil
}

// malformed is a body that is no JSON.
func malformed(err error) *errs.Error {
	e := &errs.Error{Kind: errs.BadRequest, Client: "the body is not valid JSON", Code: "invalid_json", Cause: err}
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		reason := "syntax error"
		switch {
		case errors.Is(err, jsontext.ErrDuplicateName):
			reason = "a name appears twice"
		case strings.Contains(s.Error(), "UTF-8"):
			reason = "text is not UTF-8"
		case strings.Contains(s.Error(), "depth"):
			reason = "it is nested too deeply"
		case strings.Contains(s.Error(), "EOF"):
			reason = "it ends too early"
		}
		e.Client = fmt.Sprintf("the body is not valid JSON at byte %d: %s", s.ByteOffset, reason)
	}
	return e
}

// fields reads the top-level object of a body and hands each known, non-null
// member to its reader. Unknown ones are ignored.
func fields[T any](body []byte, into T, known map[string]func(T, value) error) error {
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	raw, err := dec.ReadValue()
	if err != nil {
		return malformed(err)
	}
	top := value{raw.Clone(), "body"}
	if _, err := dec.ReadToken(); err == nil {
		return malformed(errors.New("more than one value"))
	}
	return top.members(maxMembers, func(v value) error {
		read, ok := known[v.param]
		if !ok || v.null() {
			return nil
		}
		return read(into, v)
	})
}
