package tokens

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestFromJSON(t *testing.T) {
	var files []struct {
		Pre    string
		BOS    bool
		File   json.RawMessage
		Config json.RawMessage
		Rows   [][2]json.RawMessage
	}
	readJSON(t, "testdata/hf.json", &files)
	for _, f := range files {
		t.Run(f.Pre, func(t *testing.T) {
			tok, err := FromJSON(f.File, f.Config)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range f.Rows {
				var text string
				var want []int32
				if err := errors.Join(json.Unmarshal(row[0], &text), json.Unmarshal(row[1], &want)); err != nil {
					t.Fatal(err)
				}
				if got := tok.Encode(nil, text, true); !slices.Equal(got, want) {
					t.Errorf("Encode(%q)\n got  %v\n want %v", text, got, want)
				}
			}
			if bos, add := tok.BOS(); add != f.BOS || f.BOS != (bos != None) || string(tok.Piece(tok.EOS())) != "<|end|>" ||
				!slices.Contains(tok.EOG(), tok.EOS()) || !tok.IsSpecial(tok.EOS()) || tok.ChatTemplate() != "{{ messages }}" {
				t.Errorf("bos %d %v, eos %d, template %q", bos, add, tok.EOS(), tok.ChatTemplate())
			}
			if n := len(tok.Encode(nil, "<|end|>", false)); n < 2 {
				t.Error("a control token was found in plain text")
			}
			if n := len(tok.Encode(nil, "<tool>", false)); n != 1 {
				t.Error("a user-defined token was not found in plain text")
			}
		})
	}
}

func TestFromJSONRefuses(t *testing.T) {
	const good = `{"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},` +
		`"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]},"added_tokens":[{"id":3,"content":"<x>","special":true}]}`
	if _, err := FromJSON([]byte(good), []byte(`{"eos_token":"<x>","chat_template":[{"name":"tool","template":"t"},{"name":"default","template":"d"}]}`)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		old, by string
		config  string
		want    error
	}{
		{`"BPE"`, `"Unigram"`, "", ErrUnsupported},
		{`"ByteLevel"`, `"Metaspace"`, "", ErrUnsupported},
		{`"add_prefix_space":false`, `"add_prefix_space":true`, "", ErrUnsupported},
		{`"add_prefix_space":false`, `"use_regex":false`, "", ErrUnsupported},
		{`{"type":"ByteLevel","add_prefix_space":false}`, `null`, "", ErrUnsupported},
		{`{"pre`, `{"normalizer":{"type":"Lowercase"},"pre`, "", ErrUnsupported},
		{`"special":true`, `"lstrip":true`, "", ErrUnsupported},
		{`"id":3`, `"id":1073741824`, "", ErrVocab},
		{`"id":3`, `"id":-1`, "", ErrVocab},
		{`"ab":2`, `"ab":-2`, "", ErrVocab},
		{`["a","b"]`, `["a","b","c"]`, "", ErrVocab},
		{`["a","b"]`, `"ab"`, "", ErrVocab},
		{`[["a","b"]]`, `[]`, "", ErrUnsupported},
		{`{"pre`, `{"pre`, `{"eos_token":"<y>"}`, ErrVocab},
		{`{"pre`, `{"pre`, `{"chat_template":5}`, ErrVocab},
		{`{"pre`, `{"pre`, `{`, ErrVocab},
		{good, `{`, "", ErrVocab},
	} {
		_, err := FromJSON([]byte(strings.Replace(good, tt.old, tt.by, 1)), []byte(tt.config))
		if !errors.Is(err, tt.want) {
			t.Errorf("%s for %s: %v", tt.by, tt.old, err)
		}
	}
}

func FuzzFromJSON(f *testing.F) {
	f.Add([]byte(`{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}`), []byte(`{}`))
	f.Add([]byte(`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel"}]},"model":{"type":"BPE","vocab":{"a":9},"merges":[["a","b"]]},"added_tokens":[{"id":2,"content":"x"}]}`), []byte(`{"bos_token":"x"}`))
	f.Fuzz(func(t *testing.T, file, config []byte) {
		tok, err := FromJSON(file, config)
		if err != nil {
			if !errors.Is(err, ErrVocab) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		for _, id := range tok.Encode(nil, "ab 12 x<y>é\xff", true) {
			if id < 0 || int(id) >= tok.Size() {
				t.Fatalf("id %d of %d", id, tok.Size())
			}
		}
	})
}
