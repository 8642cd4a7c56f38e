package tokens

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

func readJSON(t testing.TB, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func TestSmolLM2Fixtures(t *testing.T) {
	tok, err := New(smolLM2(t))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Text    string  `json:"text"`
		IDs     []int32 `json:"ids"`
		Special []int32 `json:"ids_parse_special"`
		Detok   string  `json:"detok_utf8_hex"`
	}
	readJSON(t, "testdata/tokenize.json", &rows)
	for pass := range 2 { // the second answers from the cache
		for _, row := range rows {
			if got := tok.Encode(nil, row.Text, false); !slices.Equal(got, row.IDs) {
				t.Errorf("pass %d: Encode(%q) = %v, want %v", pass, row.Text, got, row.IDs)
			}
			got := tok.Encode([]int32{-7}, row.Text, true)
			if got[0] != -7 || !slices.Equal(got[1:], row.Special) {
				t.Errorf("pass %d: Encode(%q, special) = %v, want %v", pass, row.Text, got[1:], row.Special)
			}
			if text := hex.EncodeToString(tok.Decode(nil, got[1:])); text != row.Detok {
				t.Errorf("Decode(%v) = %s, want %s", got[1:], text, row.Detok)
			}
			d := NewDetokenizer(tok, true)
			var text []byte
			for _, id := range got[1:] {
				text = append(text, d.Add(id)...)
			}
			if text = append(text, d.Flush()...); string(text) != row.Text {
				t.Errorf("streamed %q, want %q", text, row.Text)
			}
		}
	}
	if bos, add := tok.BOS(); bos != 1 || add || tok.EOS() != 2 || !slices.Equal(tok.EOG(), []int32{0, 2}) {
		t.Errorf("specials: bos %d %v, eos %d, eog %v", bos, add, tok.EOS(), tok.EOG())
	}
}
