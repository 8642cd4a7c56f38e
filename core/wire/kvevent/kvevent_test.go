package kvevent

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"
)

// captured is one captured message with what it holds, as another decoder saw it.
type captured struct {
	Seq     uint64            `json:"seq"`
	Hex     []string          `json:"hex"`
	Frames  []string          `json:"frames_hex"`
	Decoded []json.RawMessage `json:"decoded"`
}

// plain is an event as the other decoder wrote it.
type plain struct {
	Type   string   `json:"type"`
	Hashes []uint64 `json:"block_hashes"`
	Parent *uint64  `json:"parent_block_hash"`
	Tokens []uint32 `json:"token_ids"`
	Size   int      `json:"block_size"`
	Medium string   `json:"medium"`
}

func (p *plain) UnmarshalJSON(b []byte) error {
	if b[0] == '{' {
		type fields plain
		return json.Unmarshal(b, (*fields)(p))
	}
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	into := []any{&p.Type, &p.Hashes, &p.Parent, &p.Tokens, &p.Size, new(any), &p.Medium}
	if string(list[0]) == `"BlockRemoved"` {
		into = []any{&p.Type, &p.Hashes, &p.Medium}
	}
	for i, v := range list[:min(len(list), len(into))] {
		if err := json.Unmarshal(v, into[i]); err != nil {
			return err
		}
	}
	return nil
}

func messages(t testing.TB) map[string][]captured {
	t.Helper()
	out := map[string][]captured{}
	paths, err := filepath.Glob("testdata/sim-*.jsonl")
	if err != nil || len(paths) != 3 {
		t.Fatal(paths, err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		s := bufio.NewScanner(bytes.NewReader(b))
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			var c captured
			if err := json.Unmarshal(s.Bytes(), &c); err != nil {
				t.Fatal(err)
			}
			out[p] = append(out[p], c)
		}
	}
	const vllm = "testdata/vllm-0.32.0-events.json"
	b, err := os.ReadFile(vllm)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Frames []captured `json:"frames"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	out[vllm] = file.Frames
	return out
}

func (c captured) message(t testing.TB) Message {
	t.Helper()
	return unhex(t, append(c.Hex, c.Frames...))
}

func unhex(t testing.TB, frames []string) Message {
	t.Helper()
	raw := make([][]byte, len(frames))
	for i, f := range frames {
		var err error
		if raw[i], err = hex.DecodeString(f); err != nil {
			t.Fatal(err)
		}
	}
	m, err := ParseMessage(raw)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Every captured message reads as another decoder read it.
func TestCapturedMessages(t *testing.T) {
	for path, all := range messages(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var b Batch
			for _, c := range all {
				m := c.message(t)
				if m.Seq != c.Seq {
					t.Errorf("seq %d, want %d", m.Seq, c.Seq)
				}
				if err := b.Decode(m.Payload); err != nil {
					t.Fatal(err)
				}
				var want []plain
				if err := json.Unmarshal(c.Decoded[1], &want); err != nil {
					t.Fatal(err)
				}
				var got []plain
				for i := range b.Events {
					got = append(got, plainOf(&b.Events[i]))
				}
				for i := range want {
					if want[i].Parent != nil && *want[i].Parent == 0 {
						want[i].Parent = nil
					}
				}
				if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
					t.Errorf("seq %d (-want +got):\n%s", c.Seq, d)
				}
				if b.Rank != 0 || b.Skipped != 0 || b.Time < 1.79e9 {
					t.Errorf("rank %d, skipped %d, time %v", b.Rank, b.Skipped, b.Time)
				}
			}
		})
	}
}

func plainOf(e *Event) plain {
	p := plain{Hashes: e.Hashes, Tokens: e.Tokens, Size: e.BlockTokens, Medium: e.Medium}
	p.Type = map[Kind]string{Stored: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}[e.Kind]
	if e.Parent != 0 {
		p.Parent = &e.Parent
	}
	return p
}

// Our encoding of what vLLM said is vLLM's, byte for byte.
func TestEncodesAsVLLM(t *testing.T) {
	for _, c := range messages(t)["testdata/vllm-0.32.0-events.json"] {
		payload := c.message(t).Payload
		var b Batch
		if err := b.Decode(payload); err != nil {
			t.Fatal(err)
		}
		if got := Append(nil, &b, Format{}); !bytes.Equal(got, payload) {
			t.Errorf("seq %d:\n got %x\nwant %x", c.Seq, got, payload)
		}
	}
}

func TestCapturedReplay(t *testing.T) {
	b, err := os.ReadFile("testdata/vllm-0.32.0-replay.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Replies [][]string `json:"replies"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for i, r := range file.Replies {
		last := i == len(file.Replies)-1
		for name, frames := range map[string][]string{"3 frames": r, "2 frames": append([]string{""}, r[2:]...)} {
			m := unhex(t, frames)
			if m.IsEnd() != last {
				t.Errorf("reply %d, %s: end %v", i, name, m.IsEnd())
			}
			if last {
				continue
			}
			if err := new(Batch).Decode(m.Payload); err != nil {
				t.Errorf("reply %d, %s: %v", i, name, err)
			}
		}
	}
}

// pack writes msgpack from Go values; Go's any is all a dialect needs.
func pack(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type list = []any

type dict = map[string]any

// What engines and eras do differently.
func TestDialects(t *testing.T) {
	digest := append(bytes.Repeat([]byte{9}, 24), 0, 0, 0, 0, 0, 0, 1, 2)
	stored := func(change func(*Event)) []Event {
		e := Event{Kind: Stored, Hashes: []uint64{258}, Tokens: []uint32{1, 2}, BlockTokens: 2, Group: NoGroup}
		change(&e)
		return []Event{e}
	}
	same := func(*Event) {}
	batch := func(events ...any) any { return list{1.5, events, 0} }
	tests := []struct {
		name    string
		message any
		want    []Event
		rank    int
		skipped int
	}{
		{"short array", batch(list{"BlockStored", list{258}, nil, list{1, 2}, 2}), stored(same), 0, 0},
		{"nil rank", list{1.5, list{}, nil}, nil, NoRank, 0},
		{"no rank", list{1.5, list{}}, nil, NoRank, 0},
		{"more fields than known", list{1.5, list{list{"AllBlocksCleared", 1, dict{"a": list{}}}}, 3, "new"}, []Event{{Kind: Cleared, Group: NoGroup}}, 3, 0},
		{"outer map", dict{"ts": 1.5, "events": list{list{"BlockStored", list{258}, nil, list{1, 2}, 2}}, "data_parallel_rank": 2, "new": 1}, stored(same), 2, 0},
		{"bytes hashes", batch(list{"BlockStored", list{digest}, digest, list{1, 2}, 2}), stored(func(e *Event) { e.Parent = 258 }), 0, 0},
		{"short bytes", batch(list{"BlockRemoved", list{[]byte{1, 2}}}), []Event{{Kind: Removed, Hashes: []uint64{258}, Group: NoGroup}}, 0, 0},
		{"signed hashes", batch(list{"BlockRemoved", list{int64(-2)}}), []Event{{Kind: Removed, Hashes: []uint64{1<<64 - 2}, Group: NoGroup}}, 0, 0},
		{"SGLang's salt at 7", batch(list{"BlockStored", list{258}, nil, list{1, 2}, 2, nil, "GPU", dict{"cache_salt": "s", "x": 1}}), stored(func(e *Event) { e.Medium, e.Salt, e.Extra = "GPU", "s", true }), 0, 0},
		{"vLLM's adapter at 7", batch(list{"BlockStored", list{258}, nil, list{1, 2}, 2, 4, "CPU", "ad", list{list{"ad"}}, 1, "sliding_window", 128}), stored(func(e *Event) {
			e.LoRAID, e.Medium, e.LoRA, e.Extra, e.ExtraKey, e.Group, e.Spec = 4, "CPU", "ad", true, "ad", 1, "sliding_window"
		}), 0, 0},
		{"text ids", batch(list{"BlockStored", list{258}, nil, list{"1", "2"}, 2}), stored(same), 0, 0},
		{"bigram pairs", batch(list{"BlockStored", list{258}, nil, list{list{1, 2}, list{2, 3}}, 2}), stored(same), 0, 0},
		{"map without medium", batch(dict{"type": "BlockStored", "block_hashes": list{258}, "token_ids": list{1, 2}, "block_size": 2, "locality": list{1}}), stored(same), 0, 0},
		{"unknown kind", batch(dict{"type": "BlockMoved", "block_hashes": list{1}, "token_ids": list{4}}, list{"New", 1, list{}}, list{"BlockStored", list{258}, nil, list{1, 2}, 2}), stored(same), 0, 2},
		{"no tokens", batch(dict{"type": "BlockStored", "block_hashes": list{258}, "token_ids": list{}, "block_size": 0}), stored(func(e *Event) { e.Tokens, e.BlockTokens = nil, 0 }), 0, 0},
		{"single-precision seconds", list{float32(1.5), list{}, 0}, nil, 0, 0},
		{"whole seconds", list{1, list{}, 0}, nil, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b Batch
			if err := b.Decode(pack(t, tt.message)); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, b.Events, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if b.Rank != tt.rank || b.Skipped != tt.skipped || b.Time < 1 {
				t.Errorf("rank %d, skipped %d, time %v", b.Rank, b.Skipped, b.Time)
			}
		})
	}
}

func TestTextIDIsHashedWhenNoNumber(t *testing.T) {
	var b Batch
	if err := b.Decode(pack(t, list{1, list{list{"BlockStored", list{1}, nil, list{"image-a", "image-b"}, 2}}})); err != nil {
		t.Fatal(err)
	}
	if ids := b.Events[0].Tokens; ids[0] == ids[1] || ids[0] == 0 {
		t.Errorf("ids %v", ids)
	}
}

func TestMalformed(t *testing.T) {
	for name, payload := range map[string][]byte{
		"empty":                  {},
		"no batch":               pack(t, "text"),
		"truncated":              pack(t, list{1.5, list{list{"BlockRemoved", list{1}}}, 0})[:20],
		"more events than bytes": {0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"more keys than bytes":   {0xdf, 0xff, 0xff, 0xff, 0xff},
		"event is a number":      pack(t, list{1, list{7}}),
		"event without tag":      pack(t, list{1, list{list{}}}),
		"tag is a number":        pack(t, list{1, list{list{7}}}),
		"hash is a float":        pack(t, list{1, list{list{"BlockRemoved", list{1.5}}}}),
		"token is a map":         pack(t, list{1, list{list{"BlockStored", list{1}, nil, list{dict{}}}}}),
		"pair of pairs":          pack(t, list{1, list{list{"BlockStored", list{1}, nil, list{list{list{1}}}}}}),
		"bytes behind":           append(pack(t, list{1, list{}}), 0),
	} {
		var b Batch
		err := b.Decode(payload)
		if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "at byte") || len(b.Events) > 0 {
			t.Errorf("%s: %v, %d events", name, err, len(b.Events))
		}
	}
}

func TestParseMessage(t *testing.T) {
	for name, frames := range map[string][][]byte{
		"none": {}, "one": {{1}}, "five": {{}, {}, {}, make([]byte, 8), {}}, "short seq": {{}, {1}, {}},
	} {
		if _, err := ParseMessage(frames); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := Message{Topic: []byte("kv"), Seq: 7, Payload: []byte("p")}
	if got, err := ParseMessage(m.Frames()); err != nil || cmp.Diff(m, got) != "" {
		t.Errorf("%+v, %v", got, err)
	}
	if seq, err := ParseReplay(Replay(9)); err != nil || seq != 9 {
		t.Errorf("replay %d, %v", seq, err)
	}
	for _, bad := range [][][]byte{nil, {{1}}, {{}, {}, make([]byte, 8)}} {
		if _, err := ParseReplay(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestBlock(t *testing.T) {
	e := Event{Hashes: []uint64{1, 2}, Tokens: []uint32{1, 2, 3, 4}, BlockTokens: 2}
	if got, ok := e.Block(1); !ok || cmp.Diff([]uint32{3, 4}, got) != "" {
		t.Errorf("%v, %v", got, ok)
	}
	e.Tokens = e.Tokens[:3]
	if _, ok := e.Block(0); ok {
		t.Error("tokens that do not fit the blocks were handed out")
	}
}

// Whatever is encoded in any format decodes to the same events.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hash := rapid.Uint64Range(1, 1<<64-1)
		text := rapid.SampledFrom([]string{"", "a", "GPU", "ünï"})
		event := rapid.Custom(func(t *rapid.T) Event {
			e := Event{Kind: Kind(rapid.IntRange(1, 3).Draw(t, "kind")), Group: NoGroup}
			if e.Kind == Cleared {
				return e
			}
			e.Hashes = rapid.SliceOfN(hash, 0, 4).Draw(t, "hashes")
			e.Medium, e.Group = text.Draw(t, "medium"), rapid.IntRange(NoGroup, 3).Draw(t, "group")
			if e.Kind == Stored {
				e.Parent = rapid.Uint64().Draw(t, "parent")
				e.Tokens = rapid.SliceOfN(rapid.Uint32(), 0, 9).Draw(t, "tokens")
				e.BlockTokens, e.LoRA = rapid.IntRange(0, 64).Draw(t, "size"), text.Draw(t, "lora")
				e.LoRAID = rapid.Int64().Draw(t, "lora id")
				e.Extra = len(e.Hashes) > 0 && rapid.Bool().Draw(t, "extra")
				if e.Group >= 0 {
					e.Spec = text.Draw(t, "spec")
				}
			}
			return e
		})
		want := Batch{Time: rapid.Float64().Draw(t, "time"), Rank: rapid.IntRange(NoRank, 9).Draw(t, "rank")}
		want.Events = rapid.SliceOfN(event, 0, 5).Draw(t, "events")
		f := Format{rapid.Bool().Draw(t, "array"), rapid.Bool().Draw(t, "outer"), HashForm(rapid.IntRange(0, 2).Draw(t, "form"))}
		var got Batch
		if err := got.Decode(Append(nil, &want, f)); err != nil {
			t.Fatal(err)
		}
		opts := cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateNaNs(), cmpopts.IgnoreUnexported(Batch{})}
		if d := cmp.Diff(want, got, opts); d != "" {
			t.Fatalf("%+v (-want +got):\n%s", f, d)
		}
	})
}

// A warm batch decodes without allocating.
func TestDecodeAllocatesNothing(t *testing.T) {
	payload := messages(t)["testdata/vllm-0.32.0-events.json"][3].message(t).Payload
	var b Batch
	if n := testing.AllocsPerRun(100, func() {
		if err := b.Decode(payload); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	for _, all := range messages(f) {
		for _, c := range all {
			f.Add(c.message(f).Payload)
		}
	}
	f.Add([]byte{0x92, 0x00, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b, again Batch
		if err := b.Decode(payload); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("untyped error %v", err)
			}
			return
		}
		if len(b.tokens)+len(b.hashes) > len(payload) {
			t.Fatalf("%d elements from %d bytes", len(b.tokens)+len(b.hashes), len(payload))
		}
		if err := again.Decode(Append(nil, &b, Format{})); err != nil || len(again.Events) != len(b.Events) {
			t.Fatalf("own encoding: %v, %d events of %d", err, len(again.Events), len(b.Events))
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	payload := messages(b)["testdata/vllm-0.32.0-events.json"][4].message(b).Payload
	var batch Batch
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if err := batch.Decode(payload); err != nil {
			b.Fatal(err)
		}
	}
}
