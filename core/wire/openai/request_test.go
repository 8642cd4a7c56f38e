package openai

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster/yardmaster/core/errs"
)

func TestParseChatFields(t *testing.T) {
	got, err := ParseChat([]byte(`{"model":"m","unknown":{"deep":[1]},"messages":[
		{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"n"},
		{"role":"assistant","content":null},{"role":"user","content":"hi"}],
		"temperature":0.5,"top_p":0.9,"min_p":0.1,"top_k":-1,"presence_penalty":-2,"frequency_penalty":2,
		"repetition_penalty":1.1,"logit_bias":{"7":-100,"3":1.5},"seed":-9223372036854775808,"max_tokens":3,
		"max_completion_tokens":5.0,"min_tokens":2,"ignore_eos":true,"stop":"END","stop_token_ids":[1,2],"n":2,
		"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":false},"logprobs":true,
		"return_token_ids":true,"add_generation_prompt":false,"chat_template_kwargs":{"think":false},"cache_salt":"s",
		"skip_special_tokens":false,"include_stop_str_in_output":true,"tools":[],"tool_choice":"none","response_format":{"type":"text"}}`))
	if err != nil {
		t.Fatal(err)
	}
	seed := int64(math.MinInt64)
	want := &Request{
		Chat: true, Model: "m",
		Messages: []Message{
			{Role: "system", Content: "a\nb", Fields: map[string]any{"name": "n"}}, {Role: "assistant"}, {Role: "user", Content: "hi"},
		},
		Sampling: Sampling{
			Temperature: 0.5, TopP: 0.9, MinP: 0.1, PresencePenalty: -2, FrequencyPenalty: 2, RepetitionPenalty: 1.1,
			LogitBias: []Bias{{3, 1.5}, {7, -100}}, Seed: &seed, MaxTokens: 5, MinTokens: 2, IgnoreEOS: true,
			Stop: []string{"END"}, StopTokenIDs: []int32{1, 2}, IncludeStop: true,
		},
		N: 2, Stream: true, IncludeUsage: true, ReturnTokenIDs: true, TemplateArgs: map[string]any{"think": false}, CacheSalt: "s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNullsAreDefaults(t *testing.T) {
	got, err := ParseCompletion([]byte(`{"model":"m","prompt":"x","temperature":null,"stop":null,"stop_token_ids":null,"n":null,
		"stream":null,"stream_options":null,"logprobs":null,"max_tokens":null,"seed":null,"logit_bias":null,"echo":null,"best_of":null}`))
	want := defaults()
	want.Model, want.Prompts, want.AddSpecialTokens, want.MaxTokens = "m", []Prompt{{Text: "x"}}, true, 16
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestPromptShapes(t *testing.T) {
	for body, want := range map[string][]Prompt{
		`"a"`:                {{Text: "a"}},
		`["a", "b"]`:         {{Text: "a"}, {Text: "b"}},
		` [ 1 , 2 ]`:         {{IDs: []int32{1, 2}}},
		`[[1],[2,3]]`:        {{IDs: []int32{1}}, {IDs: []int32{2, 3}}},
		`["a",[2147483647]]`: {{Text: "a"}, {IDs: []int32{2147483647}}},
	} {
		got, err := ParseCompletion([]byte(`{"model":"m","prompt":` + body + "}"))
		if err != nil {
			t.Errorf("%s: %v", body, err)
		} else if diff := cmp.Diff(want, got.Prompts); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}

// Small bodies that ask for much are answered at once.
func TestHostileBodies(t *testing.T) {
	many := strings.Repeat
	for name, body := range map[string]string{
		"stops":   `{"model":"m","messages":[{"role":"u"}],"stop":[` + many(`"a",`, 500_000) + `"a"]}`,
		"depth":   `{"model":"m","messages":` + many("[", 200_000),
		"members": `{` + many(`"a":1,`, 100_000) + `"b":1}`,
		"names":   `{"model":"m","x":{` + many(`"a":1,`, 100_000) + `"b":1}}`,
		"bias": `{"model":"m","messages":[{"role":"u"}],"logit_bias":{"1":1` + func() string {
			var b strings.Builder
			for i := range 100_000 {
				b.WriteString(`,"` + strings.Repeat("1", i%300+2) + `":1`)
			}
			return b.String()
		}() + "}}",
		"messages": `{"model":"m","messages":[` + many(`{"role":"u"},`, 100_000) + `{"role":"u"}]}`,
		"digits":   `{"model":"m","messages":[{"role":"u"}],"seed":` + many("9", 1_000_000) + "}",
	} {
		start := time.Now()
		_, err := ParseChat([]byte(body))
		if e, ok := errors.AsType[*errs.Error](err); !ok || e.Kind != errs.BadRequest {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"u","content":[{"type":"text","text":"x"}]}],"stop":["a"],"logit_bias":{"1":2}}`))
	f.Add([]byte(`{"model":"m","prompt":[[1],"a"],"n":3,"stream":true,"stream_options":{"include_usage":true}}`))
	f.Add([]byte(`{"tokens":[1]}`))
	f.Add([]byte("{\"model\":\"\\ud800\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []func([]byte) error{
			func(b []byte) error { _, err := ParseChat(b); return err },
			func(b []byte) error { _, err := ParseCompletion(b); return err },
			func(b []byte) error { _, err := ParseTokenize(b); return err },
			func(b []byte) error { _, err := ParseDetokenize(b); return err },
		} {
			err := parse(body)
			if e, ok := errors.AsType[*errs.Error](err); err != nil && (!ok || e.Kind != errs.BadRequest || e.Client == "") {
				t.Fatalf("%q: %v", body, err)
			}
		}
	})
}
