package logline

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"
)

// encoder appends one line to b.
type encoder struct {
	b     []byte
	json  bool
	first bool   // nothing to separate from stands before
	scope []byte // of text keys: the names of the groups around, each with a dot
}

// position is a place in a line to go back to.
type position struct {
	length, scope int
	first         bool
}

func (e *encoder) mark() position { return position{len(e.b), len(e.scope), e.first} }

func (e *encoder) reset(p position) {
	e.b, e.scope, e.first = e.b[:p.length], e.scope[:p.scope], p.first
}

func (e *encoder) open() {
	e.first = true
	if e.json {
		e.b = append(e.b, '{')
	}
}

// close ends the line, with depth groups still open.
func (e *encoder) close(depth int) {
	if e.json {
		for range depth {
			e.b = append(e.b, '}')
		}
		e.b = append(e.b, '}')
	}
	e.b = append(e.b, '\n')
}

// openGroups enters groups, those around being open already.
func (e *encoder) openGroups(around, groups []string) {
	for _, g := range around {
		e.scope = append(append(e.scope, g...), '.')
	}
	for _, g := range groups {
		e.enter(g)
	}
}

func (e *encoder) enter(group string) {
	if !e.json {
		e.scope = append(append(e.scope, group...), '.')
		return
	}
	e.key(group)
	e.b = append(e.b, '{')
	e.first = true
}

func (e *encoder) separate() {
	switch {
	case e.first:
		e.first = false
	case e.json:
		e.b = append(e.b, ',')
	default:
		e.b = append(e.b, ' ')
	}
}

func (e *encoder) key(name string) {
	e.separate()
	if e.json {
		e.text(name)
		e.b = append(e.b, ':')
		return
	}
	switch {
	case len(e.scope) == 0:
		e.text(name)
	case needsQuotes(string(e.scope)) || needsQuotes(name):
		e.b = strconv.AppendQuote(e.b, string(e.scope)+name)
	default:
		e.b = append(append(e.b, e.scope...), name...)
	}
	e.b = append(e.b, '=')
}

// attr appends an attribute. Empty ones and groups of nothing leave no trace.
func (e *encoder) attr(a slog.Attr) {
	v := a.Value.Resolve()
	if a.Key == "" && v.Equal(slog.Value{}) {
		return
	}
	if v.Kind() == slog.KindGroup {
		e.group(a.Key, v.Group())
		return
	}
	e.key(a.Key)
	e.value(v)
}

// group appends a group's attributes, in line when it has no name.
func (e *encoder) group(name string, attrs []slog.Attr) {
	if len(attrs) == 0 {
		return
	}
	start := e.mark()
	if name != "" {
		e.enter(name)
	}
	before := len(e.b)
	for _, a := range attrs {
		e.attr(a)
	}
	switch {
	case len(e.b) == before:
		e.reset(start)
	case name != "" && e.json:
		e.b = append(e.b, '}')
	}
	e.scope = e.scope[:start.scope]
}

func (e *encoder) value(v slog.Value) {
	switch v.Kind() {
	case slog.KindString:
		e.text(v.String())
	case slog.KindInt64:
		e.b = strconv.AppendInt(e.b, v.Int64(), 10)
	case slog.KindUint64:
		e.b = strconv.AppendUint(e.b, v.Uint64(), 10)
	case slog.KindBool:
		e.b = strconv.AppendBool(e.b, v.Bool())
	case slog.KindFloat64:
		e.float(v.Float64())
	case slog.KindDuration:
		if e.json {
			e.b = strconv.AppendInt(e.b, int64(v.Duration()), 10)
		} else {
			e.b = append(e.b, v.Duration().String()...)
		}
	case slog.KindTime:
		e.time(v.Time())
	case slog.KindAny, slog.KindGroup, slog.KindLogValuer: // the last two were resolved
		e.any(v.Any())
	}
}

// float appends a number; JSON has its own form of it, and none of infinities.
func (e *encoder) float(f float64) {
	if e.json {
		e.marshal(f)
		return
	}
	e.b = strconv.AppendFloat(e.b, f, 'g', -1, 64)
}

// time appends milliseconds in text and all there is in JSON.
func (e *encoder) time(t time.Time) {
	t = t.Round(0) // without the monotonic reading
	if e.json {
		e.b = append(e.b, '"')
		e.b = t.AppendFormat(e.b, time.RFC3339Nano)
		e.b = append(e.b, '"')
		return
	}
	// The format pads no fraction of zeros; a tenth of a millisecond more makes it
	// show four digits, of which three stay.
	const lastShown = len("2006-01-02T15:04:05.000")
	t = t.Truncate(time.Millisecond).Add(time.Millisecond / 10)
	at := len(e.b)
	e.b = t.AppendFormat(e.b, time.RFC3339Nano)
	e.b = append(e.b[:at+lastShown], e.b[at+lastShown+1:]...)
}

// any appends a value of a type that slog does not know. A value that panics,
// e.g. a nil pointer, must not end its request.
func (e *encoder) any(v any) {
	at := len(e.b)
	defer func() {
		if p := recover(); p != nil {
			e.b = e.b[:at]
			if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && r.IsNil() {
				e.text("<nil>")
				return
			}
			e.text(fmt.Sprintf("!PANIC: %v", p))
		}
	}()
	if e.json {
		e.anyJSON(v)
	} else {
		e.anyText(v)
	}
}

func (e *encoder) anyJSON(v any) {
	switch x := v.(type) {
	case json.Marshaler:
		e.marshal(v)
	case error:
		e.text(x.Error())
	case encoding.TextAppender:
		e.appended(x)
	default:
		e.marshal(v)
	}
}

func (e *encoder) anyText(v any) {
	switch x := v.(type) {
	case encoding.TextAppender:
		e.appended(x)
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil {
			e.failed(err)
			return
		}
		e.text(string(text))
	case []byte:
		e.b = strconv.AppendQuote(e.b, string(x))
	default:
		e.text(fmt.Sprintf("%+v", v))
	}
}

// appended appends a value that describes itself without memory of its own.
func (e *encoder) appended(v encoding.TextAppender) {
	at := len(e.b)
	b, err := v.AppendText(e.b)
	if err != nil {
		e.failed(err)
		return
	}
	e.b = b
	e.quoteFrom(at)
}

func (e *encoder) failed(err error) { e.text("!ERROR:" + err.Error()) }

func (e *encoder) marshal(v any) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		e.failed(err)
		return
	}
	e.b = append(e.b, bytes.TrimSuffix(out.Bytes(), []byte("\n"))...)
}

// quoteFrom makes what was appended raw since at a value, quoted where needed.
func (e *encoder) quoteFrom(at int) {
	raw := e.b[at:]
	switch {
	case !e.json && plainBytes(raw):
	case printable(raw):
		e.b = append(e.b, 0, 0)
		copy(e.b[at+1:], e.b[at:len(e.b)-2])
		e.b[at], e.b[len(e.b)-1] = '"', '"'
	default:
		text := string(raw)
		e.b = e.b[:at]
		if e.json {
			e.marshal(text) // slog leaves such values to that, which escapes \b and \f otherwise
			return
		}
		e.text(text)
	}
}

// printable reports whether raw can stand between quotes as it is.
func printable[T string | []byte](raw T) bool {
	for i := range len(raw) {
		if c := raw[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// plainBytes reports whether raw can stand without quotes.
func plainBytes(raw []byte) bool {
	for _, c := range raw {
		if !plain[c] {
			return false
		}
	}
	return len(raw) > 0
}

// plain holds the ASCII characters that need no quotes in text.
var plain = func() (t [256]bool) {
	for c := '!'; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '='
	}
	return t
}()

// text appends a string, quoted where the format wants it.
func (e *encoder) text(s string) {
	switch {
	case e.json:
		e.b = appendJSON(e.b, s)
	case !needsQuotes(s):
		e.b = append(e.b, s...)
	case printable(s):
		e.b = append(append(append(e.b, '"'), s...), '"')
	default:
		e.b = strconv.AppendQuote(e.b, s)
	}
}

func needsQuotes(s string) bool {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if !plain[c] {
				return true
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsPrint(r) {
			return true
		}
		i += size
	}
	return s == ""
}

const hex = "0123456789abcdef"

// appendJSON appends s as a JSON string. What is no UTF-8 becomes the
// replacement character.
func appendJSON(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if ' ' <= c && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			if r, size = utf8.DecodeRuneInString(s[i:]); r != '\u2028' && r != '\u2029' && (r != utf8.RuneError || size > 1) {
				i += size
				continue
			}
			b = append(b, s[start:i]...)
			if r == utf8.RuneError {
				b = append(b, `\ufffd`...)
			} else {
				b = append(b, `\u202`...)
				b = append(b, hex[r&0xf])
			}
		} else {
			b = append(b, s[start:i]...)
			b = appendEscape(b, c)
		}
		i += size
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// appendEscape appends an ASCII character that may not stand in a JSON string.
func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
}
