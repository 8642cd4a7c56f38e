package edge

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestTakeIDs(t *testing.T) {
	tests := []struct {
		in, cut string
		ids     []uint32
		lists   int
	}{
		{"", "", nil, 0},
		{`data: {"choices":[{"text":"a","token_ids":[1,22]}]}` + "\n\n", `data: {"choices":[{"text":"a"}]}` + "\n\n", []uint32{1, 22}, 1},
		{`{"a":1,"token_ids":[]}{"b":2,"token_ids":[4294967295],"c":3}`, `{"a":1}{"b":2,"c":3}`, []uint32{1<<32 - 1}, 2},
		{`{"text":",\"token_ids\":[7]"}`, `{"text":",\"token_ids\":[7]"}`, nil, 0},
		{`{"a":1,"token_ids":[4294967296]}`, `{"a":1,"token_ids":[4294967296]}`, nil, 0},
		{`{"a":1,"token_ids":[1,]}`, `{"a":1,"token_ids":[1,]}`, nil, 0},
		{`{"a":1,"token_ids":["x"],"token_ids":[5]}`, `{"a":1,"token_ids":["x"]}`, []uint32{5}, 1},
		{`{"a":1,"token_ids":[1`, `{"a":1,"token_ids":[1`, nil, 0},
	}
	for _, tt := range tests {
		kept, ids, lists := TakeIDs([]byte(tt.in), nil, false)
		if string(kept) != tt.in || !slices.Equal(ids, tt.ids) || lists != tt.lists {
			t.Errorf("%s: kept %s, ids %v, %d lists", tt.in, kept, ids, lists)
		}
		rest, ids, lists := TakeIDs([]byte(tt.in), []uint32{9}, true)
		if string(rest) != tt.cut || !slices.Equal(ids, append([]uint32{9}, tt.ids...)) || lists != tt.lists {
			t.Errorf("%s: cut to %s, ids %v, %d lists", tt.in, rest, ids, lists)
		}
	}
}

func FuzzTakeIDs(f *testing.F) {
	for _, s := range []string{`{"a":1,"token_ids":[1,2]}`, `,"token_ids":[`, `,"token_ids":[,"token_ids":[3]`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		kept, ids, lists := TakeIDs([]byte(s), nil, false)
		if string(kept) != s {
			t.Fatal("changed without being cut")
		}
		rest, again, n := TakeIDs([]byte(s), nil, true)
		if !slices.Equal(ids, again) || n != lists || len(rest) > len(s) {
			t.Fatal("cutting reads other ids")
		}
		if lists == 0 && string(rest) != s {
			t.Fatal("cut without a list")
		}
	})
}

func TestContinuation(t *testing.T) {
	r, err := Parse([]byte(` {"yardmaster_continue":{"token_ids":[666]},"model":"m","stream":true}`), 0)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Continuation([]uint32{1, 4000000000})
	var body struct {
		Continue struct {
			IDs []uint32 `json:"token_ids"`
		} `json:"yardmaster_continue"`
		Model string `json:"model"`
	}
	if err := json.Unmarshal(got, &body); err != nil || !slices.Equal(body.Continue.IDs, []uint32{1, 4000000000}) || body.Model != "m" {
		t.Errorf("%s: %v", got, err)
	}
	if strings.Contains(string(r.Body), "666") {
		t.Error("a client's continuation passes")
	}
}

func TestManyPrompts(t *testing.T) {
	for prompt, want := range map[string]bool{
		`"x"`: false, `["x"]`: false, `[1,2]`: false, `[[1,2]]`: false, `[]`: false, `null`: false, `{"0":1,"1":2}`: false,
		`["x","y"]`: true, `[[1],[2]]`: true, `[[1,2,3],[4,5],[6]]`: true, `[ "x" , "y" ]`: true, `["",""]`: true, `[[1],"x"]`: true,
	} {
		for _, stream := range []string{"", `"stream":true,`} {
			r, err := Parse([]byte(`{"model":"m",`+stream+`"prompt":`+prompt+`}`), 0)
			if err != nil || r.ManyPrompts != want {
				t.Errorf("%s: %v, %v", prompt, r.ManyPrompts, err)
			}
		}
	}
	if r, err := Parse([]byte(`{"model":"m","messages":[1,2],"stop":["a","b"]}`), 0); err != nil || r.ManyPrompts {
		t.Errorf("a chat has one prompt: %v", err)
	}
}

func TestContinuable(t *testing.T) {
	for body, want := range map[string]bool{
		`{"model":"m","stream":true}`:                                true,
		`{"model":"m"}`:                                              false,
		`{"model":"m","stream":true,"n":1,"logprobs":false}`:         true,
		`{"model":"m","stream":true,"n":2}`:                          false,
		`{"model":"m","stream":true,"logprobs":true}`:                false,
		`{"model":"m","stream":true,"logprobs":0}`:                   false,
		`{"model":"m","stream":true,"logprobs":null,"prompt":"x"}`:   true,
		`{"model":"m","stream":true,"prompt":[1,2]}`:                 true,
		`{"model":"m","stream":true,"prompt":["x"]}`:                 true,
		`{"model":"m","stream":true,"prompt":["x","y"]}`:             false,
		`{"model":"m","stream":true,"prompt":[[1,2]]}`:               false,
		`{"model":"m","stream":true,"messages":[],"stop":["a","b"]}`: true,
	} {
		r, err := Parse([]byte(body), 0)
		if err != nil || r.Continuable != want {
			t.Errorf("%s: %v, %v", body, r.Continuable, err)
		}
	}
}
