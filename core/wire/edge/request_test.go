package edge

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/errs"
)

func TestParse(t *testing.T) {
	body := `{"messages":[{"role":"user","content":"hi"}], "model":"m\u0031","stream":true,"max_tokens":5,"max_completion_tokens":7,"seed":9223372036854775807}`
	r, err := Parse([]byte(body), 0)
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Body) != body {
		t.Errorf("body changed: %s", r.Body)
	}
	if r.Model != "m1" || !r.Stream || r.WantsUsage || r.MaxTokens != 7 || r.Prompt != 32 {
		t.Errorf("%+v", r)
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, body, param, text string }{
		{"empty", ``, "", "not valid JSON"},
		{"cut", `{"model":"m"`, "", "not valid JSON"},
		{"array", `[1]`, "", "not a JSON object"},
		{"no model", `{"prompt":"x"}`, "model", "missing"},
		{"null model", `{"model":null}`, "model", "missing"},
		{"number model", `{"model":5}`, "model", "non-empty string"},
		{"long model", `{"model":"` + strings.Repeat("x", 513) + `"}`, "model", "longer than 512"},
		{"stream text", `{"model":"m","stream":"yes"}`, "stream", "true or false"},
		{"options", `{"model":"m","stream_options":[]}`, "stream_options", "not an object"},
		{"twice", `{"model":"m","stream":true,"model":"n"}`, "model", "occurs twice"},
		{"twice escaped", `{"model":"m","m\u006fdel":"n"}`, "model", "occurs twice"},
		{"deep", `{"model":` + strings.Repeat("[", 10_000), "", "deeper than 128"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.body), 0)
			e := errs.As(err)
			if err == nil || e.Kind != errs.BadRequest || e.Param != tt.param || !strings.Contains(e.Client, tt.text) {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestInternalFieldsAreTakenOut(t *testing.T) {
	tests := []struct{ in, want string }{
		{`{"kv_transfer_params":{"remote_host":"10.0.0.1"},"model":"m"}`, `{"model":"m"}`},
		{`{"model":"m","bootstrap_room":1,"bootstrap_host":"h"}`, `{"model":"m"}`},
		{"{ \"model\" : \"m\" ,\n\"data_parallel_rank\":1 , \"x\": 1.50 }", `{"model" : "m","x": 1.50}`},
		{`{"model":"m","kv_transfer_p\u0061rams":1,"kv_transfer_params":2}`, `{"model":"m"}`},
		{`{"model":"m","x":{"bootstrap_room":1}}`, `{"model":"m","x":{"bootstrap_room":1}}`},
	}
	for _, tt := range tests {
		r, err := Parse([]byte(tt.in), 0)
		if err != nil || string(r.Body) != tt.want {
			t.Errorf("%s became %s, %v; want %s", tt.in, r.Body, err, tt.want)
		}
	}
}

func TestCountUsage(t *testing.T) {
	tests := []struct {
		in, want string
		added    bool
	}{
		{`{"model":"m"}`, `{"model":"m"}`, false},
		{`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, false},
		{` {"model":"m","stream":true}`, ` {"stream_options":{"include_usage":true},"model":"m","stream":true}`, true},
		{`{"model":"m","stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true},
		{`{"model":"m","stream":true,"stream_options":{}}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true},
		{`{"stream_options": {"a": 1},"model":"m","stream":true}`, `{"stream_options": {"include_usage":true,"a": 1},"model":"m","stream":true}`, true},
		{`{"stream_options":{"a":1,"include_usage":false},"model":"m","stream":true}`, `{"stream_options":{"a":1,"include_usage":true},"model":"m","stream":true}`, true},
		{`{"bootstrap_room":1,"stream_options":{"include_usage":null},"model":"m","stream":true}`, `{"stream_options":{"include_usage":true},"model":"m","stream":true}`, true},
	}
	for _, tt := range tests {
		r, err := Parse([]byte(tt.in), 0)
		if err != nil {
			t.Fatal(err)
		}
		r.CountUsage()
		r.CountUsage()
		if string(r.Body) != tt.want || r.AddedUsage != tt.added {
			t.Errorf("%s became %s (%v), want %s", tt.in, r.Body, r.AddedUsage, tt.want)
		}
	}
}

func TestShorten(t *testing.T) {
	tests := []struct{ in, want string }{
		{`{"model":"m"}`, `{"max_tokens":64,"model":"m"}`},
		{`{"model":"m","max_tokens":64}`, `{"model":"m","max_tokens":64}`},
		{`{"model":"m","max_tokens":5}`, `{"model":"m","max_tokens":5}`},
		{`{"model":"m","max_tokens":5000,"x":1}`, `{"model":"m","max_tokens":64  ,"x":1}`},
		{`{"max_tokens":null,"model":"m"}`, `{"max_tokens":64  ,"model":"m"}`},
		{`{"model":"m","max_tokens":9,"max_completion_tokens":900}`, `{"model":"m","max_tokens":9,"max_completion_tokens":64 }`},
		{`{"max_completion_tokens":1e9,"model":"m","max_tokens":100}`, `{"max_completion_tokens":64 ,"model":"m","max_tokens":64 }`},
		{`{"model":"m","stream":true}`, `{"max_tokens":64,"stream_options":{"include_usage":true},"model":"m","stream":true}`},
	}
	for _, tt := range tests {
		r, err := Parse([]byte(tt.in), 0)
		if err != nil {
			t.Fatal(err)
		}
		r.CountUsage()
		r.Shorten(64)
		r.Shorten(100)
		if string(r.Body) != tt.want || r.MaxTokens > 64 || r.MaxTokens == 0 {
			t.Errorf("%s became %s (%d), want %s", tt.in, r.Body, r.MaxTokens, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","stream":true,"stream_options":{"include_usage":false,"x":[1,{"y":"]"}]},"kv_transfer_params":{"a":"}"},"z":1e400}`,
		`{"a":"\\\"","model":"m"}`, " {\"model\":\"\\u006d\"}\n", `{"model":"m","bootstrap_":1}`, `{"model":"m","model":"n"}`, `{{`, `"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		r, err := Parse(body, 0)
		if string(body) != before {
			t.Fatal("Parse changed the client's body")
		}
		if err != nil {
			if errs.KindOf(err) != errs.BadRequest {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		want := members(t, []byte(before))
		for name := range want {
			if internalField(name) {
				delete(want, name)
			}
		}
		if diff := cmp.Diff(want, members(t, r.Body)); diff != "" {
			t.Fatal(diff)
		}
		r.CountUsage()
		got := members(t, r.Body)
		if r.AddedUsage {
			var options struct {
				IncludeUsage any `json:"include_usage"`
			}
			if err := json.Unmarshal([]byte(got["stream_options"]), &options); err != nil {
				t.Fatalf("%s: %v", r.Body, err)
			}
		}
		delete(want, "stream_options")
		delete(got, "stream_options")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// members are the top-level fields of an object, values as they are spelled.
func members(t *testing.T, body []byte) map[string]string {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		t.Fatalf("%q is not JSON: %v", body, err)
	}
	out := map[string]string{}
	for k, v := range raw {
		out[k] = string(v)
	}
	return out
}

func BenchmarkParse48K(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word and ", 48<<10/9) + `"}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(body, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// The usage option is put in the same way with room behind the body, where it
// takes no other memory, and without.
func TestCountUsageInPlace(t *testing.T) {
	for _, text := range []string{
		`{"model":"m","stream":true}`,
		`{"model":"m","stream":true,"stream_options":null,"x":1}`,
		`{"model":"m","stream_options":{},"stream":true}`,
		`{"model":"m","stream_options":{"a":[1]},"stream":true}`,
		`{"model":"m","stream_options":{"include_usage":false,"a":1},"stream":true}`,
		`{"model":"m","stream_options":{"include_usage":"yes"},"stream":true}`,
	} {
		tight, err := Parse([]byte(text), 0)
		if err != nil {
			t.Fatal(err)
		}
		tight.CountUsage()
		room := append(make([]byte, 0, len(text)+64), text...)
		roomy, err := Parse(room, 0)
		if err != nil {
			t.Fatal(err)
		}
		roomy.CountUsage()
		if string(roomy.Body) != string(tight.Body) || !strings.Contains(string(tight.Body), `"include_usage":true`) {
			t.Errorf("%s became %s with room, %s without", text, roomy.Body, tight.Body)
		}
		if &roomy.Body[0] != &room[0] {
			t.Errorf("%s was copied", text)
		}
	}
}
