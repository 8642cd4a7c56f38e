package edge

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/wire/openai"
)

// longestMessage bounds what is passed on of an engine's error text, in bytes.
const longestMessage = 2000

// Envelope gives an engine's error body the shape
//
//	{"error":{"message":…,"type":…,"param":…,"code":"…"}}
//
// and the status that belongs to it (422 becomes 400, what is no error status
// becomes 502). A body of that shape already passes unchanged. Known others are
// the flat object of older vLLM, FastAPI's detail, a bare string or message,
// and plain text. Text that is no JSON is passed on only with a client's fault:
// what a crashed engine prints is not for clients.
func Envelope(status int, body []byte) (int, []byte) {
	answered := "the engine answered with status " + strconv.Itoa(status)
	if status >= 300 && status < 400 {
		answered += ", a redirect, which is not followed"
	}
	status = errorStatus(status)
	kind := KindOf(status)
	if root, ok := object(body); ok {
		if wellFormed(root) {
			return status, body
		}
		if f := faultOf(root); f.message != "" {
			return status, f.envelope(kind)
		}
	}
	message := ""
	if plain := strings.TrimSpace(string(body[:min(len(body), longestMessage)])); kind != errs.Upstream && !strings.HasPrefix(plain, "<") {
		message = strings.ToValidUTF8(plain, "")
	}
	if message == "" {
		message = answered
	}
	return status, fault{message: message}.envelope(kind)
}

// KindOf is the failure kind of an engine's error status.
func KindOf(status int) errs.Kind {
	switch status {
	case 401:
		return errs.Unauthorized
	case 403:
		return errs.Forbidden
	case 404:
		return errs.NotFound
	case 408, 504:
		return errs.Timeout
	case 413:
		return errs.TooLarge
	case 429:
		return errs.Saturated
	case 503:
		return errs.NoCapacity
	}
	if status >= 400 && status < 500 {
		return errs.BadRequest
	}
	return errs.Upstream
}

func errorStatus(status int) int {
	switch {
	case status == 422:
		return 400
	case status < 400 || status > 599:
		return 502
	}
	return status
}

// fault is an engine's error, whatever shape it came in.
type fault struct {
	message, kind, param, code string
}

func (f fault) envelope(kind errs.Kind) []byte {
	typ, code := f.kind, f.code
	if typ == "" {
		typ = openai.ErrorType(kind)
	}
	if code == "" {
		code = kind.String()
	}
	out := append([]byte(nil), `{"error":{"message":`...)
	out = openai.AppendString(out, cut(f.message))
	out = append(out, `,"type":`...)
	out = openai.AppendString(out, cut(typ))
	out = append(out, `,"param":`...)
	if f.param == "" {
		out = append(out, "null"...)
	} else {
		out = openai.AppendString(out, cut(f.param))
	}
	out = append(out, `,"code":`...)
	out = openai.AppendString(out, cut(code))
	return append(out, "}}"...)
}

// cut shortens s to longestMessage bytes, between characters.
func cut(s string) string {
	if len(s) <= longestMessage {
		return s
	}
	n := longestMessage
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// failure reads root as an error, nested or flat; nil when it is none. A 4xx
// code inside makes it the client's fault, not the engine's.
func failure(root gjson.Result) *errs.Error {
	nested := root.Get("error")
	flat := root.Get("object").Str == "error"
	if !flat && (!nested.Exists() || nested.Type == gjson.Null || nested.Type == gjson.False) {
		return nil
	}
	f := faultOf(root)
	if f.message == "" {
		f.message = "the engine reported an error"
	}
	kind := errs.Upstream
	if status, err := strconv.Atoi(f.code); err == nil && status >= 400 && status < 500 {
		kind = KindOf(status)
		f.code = ""
	} else if f.kind == openai.ErrorType(errs.BadRequest) || f.kind == "BadRequestError" {
		kind = errs.BadRequest
	}
	return &errs.Error{Kind: kind, Client: cut(f.message), Param: cut(f.param), Code: word(f.code)}
}

// longestWord bounds a machine word, in bytes.
const longestWord = 64

// word is s if it is a machine word, else empty. A code stands in headers and
// logs, where text of an engine's has no place.
func word(s string) string {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return ""
		}
	}
	if len(s) > longestWord {
		return ""
	}
	return s
}

// faultOf finds message, type, param and code in the shapes engines use.
func faultOf(root gjson.Result) fault {
	inner := root
	switch e := root.Get("error"); {
	case e.IsObject():
		inner = e
	case e.Type == gjson.String:
		return fault{message: strings.Clone(e.Str)}
	}
	f := fault{
		message: str(inner.Get("message")),
		kind:    str(inner.Get("type")),
		param:   str(inner.Get("param")),
		code:    str(inner.Get("code")),
	}
	if f.message == "" {
		detail(&f, inner.Get("detail"))
	}
	return f
}

// detail reads FastAPI's error: a string, or a list of {loc, msg}.
func detail(f *fault, d gjson.Result) {
	if !d.IsArray() {
		f.message = str(d)
		return
	}
	var messages []string
	d.ForEach(func(_, item gjson.Result) bool {
		var field string
		item.Get("loc").ForEach(func(_, part gjson.Result) bool {
			if part.Type == gjson.String && part.Str != "body" {
				field = part.Str
			}
			return true
		})
		if f.param == "" {
			f.param = strings.Clone(field)
		}
		message := str(item.Get("msg"))
		if field != "" {
			message = field + ": " + message
		}
		messages = append(messages, message)
		return len(messages) < 8
	})
	f.message = strings.Join(messages, "; ")
}

// str is a string or number as a string of its own memory; "" for the rest.
func str(v gjson.Result) string {
	switch v.Type {
	case gjson.String:
		return strings.Clone(v.Str)
	case gjson.Number:
		return strings.Clone(v.Raw)
	case gjson.Null, gjson.False, gjson.True, gjson.JSON:
	}
	return ""
}

func object(body []byte) (gjson.Result, bool) {
	if depth(body, DefaultMaxDepth) > DefaultMaxDepth || !gjson.ValidBytes(body) {
		return gjson.Result{}, false
	}
	root := gjson.Parse(text(body))
	return root, root.IsObject()
}

// wellFormed reports whether root is the envelope clients expect.
func wellFormed(root gjson.Result) bool {
	e := root.Get("error")
	code := e.Get("code")
	return e.IsObject() && e.Get("message").Type == gjson.String && e.Get("type").Type == gjson.String &&
		(code.Type == gjson.String || code.Type == gjson.Null)
}
