package openai

import (
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"github.com/yardmaster/yardmaster/core/errs"
)

func TestAppendError(t *testing.T) {
	tests := []struct {
		err  *errs.Error
		want string
	}{
		{
			&errs.Error{Kind: errs.BadRequest, Client: "temperature must be in [0, 2]", Param: "temperature"},
			`{"error":{"message":"temperature must be in [0, 2]","type":"invalid_request_error","param":"temperature","code":"bad_request"}}`,
		},
		{
			&errs.Error{Kind: errs.NotFound, Client: "no \"x\"\n", Code: "model_not_found", Cause: errors.New("secret")},
			`{"error":{"message":"no \"x\"\n","type":"invalid_request_error","param":null,"code":"model_not_found"}}`,
		},
		{
			errs.As(errors.New("dial 10.0.0.7")),
			`{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal"}}`,
		},
	}
	for _, tt := range tests {
		if got := string(AppendError(nil, tt.err)); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestEveryKindHasAStatusAndType(t *testing.T) {
	want := map[errs.Kind]int{
		errs.Internal: 500, errs.BadRequest: 400, errs.Unauthorized: 401, errs.Forbidden: 403,
		errs.NotFound: 404, errs.TooLarge: 413, errs.Saturated: 429, errs.NoCapacity: 503,
		errs.Upstream: 502, errs.Timeout: 504, errs.Canceled: 499,
	}
	for k := errs.Internal; k <= errs.Canceled; k++ {
		if Status(k) != want[k] {
			t.Errorf("Status(%v) = %d, want %d", k, Status(k), want[k])
		}
		if k != errs.Internal && ErrorType(k) == ErrorType(errs.Internal) {
			t.Errorf("%v has no type of its own", k)
		}
	}
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "a\"\\\n\r\t\b\f\x00\x7f", "é\u2028\u2029😀", "\xff\xc3", "\xf0\x9f\x98"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		out := AppendString(nil, s)
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q: %s: %v", s, out, err)
		}
		if !utf8.Valid(out) || got != string([]rune(s)) {
			t.Fatalf("%q became %q", s, got)
		}
		if b := AppendString(nil, []byte(s)); string(b) != string(out) {
			t.Fatalf("bytes %s, string %s", b, out)
		}
	})
}
