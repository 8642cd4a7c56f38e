package scripted

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/unit"
)

const longPrompt = "The quick brown fox jumps over the lazy dog, again and again, until the prompt is long enough to fill several blocks."

// hosted are the headers of a leg in Yardmaster's own handshake.
func hosted(leg engine.Leg, transfer string, peer *Engine) []string {
	p := engine.Peer{ID: "peer", Epoch: 0, Transfer: peer.Addr()}
	return []string{engine.HeaderLeg, leg.String(), engine.HeaderTransfer, transfer, engine.HeaderPeer, p.String()}
}

func completion(prompt string, n string) string {
	b, _ := json.Marshal(prompt)
	return `{"prompt":` + string(b) + `,"max_tokens":` + n + `}`
}

// The two legs, in either order, give the text that one engine gives alone.
func TestHostedTransfer(t *testing.T) {
	alone := NewTest(t)
	_, _, want := ask(t, alone, "/v1/completions", completion(longPrompt, "6"))
	for _, first := range []engine.Leg{engine.Prefill, engine.Decode} {
		t.Run(first.String()+" first", func(t *testing.T) {
			p, d := NewTest(t), NewTest(t)
			type result struct {
				status int
				header http.Header
				body   answer
			}
			legs := map[engine.Leg]chan result{engine.Prefill: make(chan result, 1), engine.Decode: make(chan result, 1)}
			send := func(leg engine.Leg, e, peer *Engine) {
				status, header, body := ask(t, e, "/v1/completions", completion(longPrompt, "6"), hosted(leg, "00000000000000aa", peer)...)
				legs[leg] <- result{status, header, body}
			}
			if first == engine.Prefill {
				send(engine.Prefill, p, d)
				if p.Load().HeldBlocks == 0 {
					t.Error("blocks are not held for the decode leg")
				}
				send(engine.Decode, d, p)
			} else {
				go send(engine.Decode, d, p)
				wait(t, d, func(c Counters, _ []Record) bool { return c.InFlight == 1 })
				send(engine.Prefill, p, d)
			}
			pre, dec := <-legs[engine.Prefill], <-legs[engine.Decode]
			if pre.status != 200 || pre.body.Usage.Completion != 1 {
				t.Errorf("prefill leg %+v", pre)
			}
			if dec.status != 200 || dec.header.Get(engine.HeaderKV) != "moved" || dec.body.Choices[0].Text != want.Choices[0].Text {
				t.Errorf("decode leg %d %q %q, want %q", dec.status, dec.header.Get(engine.HeaderKV), dec.body.Choices[0].Text, want.Choices[0].Text)
			}
			if l := d.Load(); l.TransferredTokens != Tokens(longPrompt) || l.PromptTokens > 1 {
				t.Errorf("decode engine %+v", l)
			}
			if dec.body.Usage.Details.Cached != 0 {
				t.Errorf("usage %+v: what was moved was in no cache", dec.body.Usage)
			}
			for p.Load().HeldBlocks > 0 {
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A transfer that fails is recomputed, with the reason, and the text is right.
func TestHostedTransferFails(t *testing.T) {
	alone := NewTest(t)
	_, _, want := ask(t, alone, "/v1/completions", completion(longPrompt, "6"))
	tests := []struct {
		name    string
		prefill string // script of the prefill engine; the leg is sent unless empty
		decode  string
		prompt  string // of the prefill leg
		kv      string
		status  int
	}{
		{"no prefill leg", "", "kv: {wait: 20ms}", "", "recomputed; unknown_transfer", 200},
		{"peer dead", "dead", "", "", "recomputed; peer_unreachable", 200},
		{"peer dead, told to fail", "dead", "kv: {dead: error}", "", "", 500},
		{"other prompt", "{}", "", "something else entirely", "recomputed; wrong_prompt", 200},
		{"prefill aborted", "rules: [{do: {generate: {first_token: 1h}}}]", "", longPrompt, "recomputed; prefill_aborted", 200},
		{"prefill forgets", "rules: [{do: {kv: {forget: true}}}]", "kv: {wait: 20ms}", longPrompt, "recomputed; unknown_transfer", 200},
		{"scripted", "{}", "rules: [{do: {kv: {fail: checksum}}}]", longPrompt, "recomputed; checksum", 200},
		{"scripted, told to fail", "{}", "rules: [{do: {kv: {fail: checksum, fault: error}}}]", longPrompt, "", 500},
		{"stalled", "{}", "kv: {wait: 20ms}\nrules: [{do: {kv: {stall: true}}}]", longPrompt, "recomputed; timeout", 200},
		{"delayed", "{}", "rules: [{do: {kv: {delay: 5ms}}}]", longPrompt, "moved", 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			script := tt.prefill
			if script == "dead" {
				script = "{}"
			}
			p, d := NewTest(t, YAML(script)), NewTest(t, YAML(tt.decode))
			switch {
			case tt.prefill == "dead":
				if err := p.Kill(); err != nil {
					t.Fatal(err)
				}
			case tt.name == "prefill aborted":
				conn := dial(t, p)
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+"/v1/completions", strings.NewReader(completion(longPrompt, "6")))
				h := hosted(engine.Prefill, "aa", d)
				for i := 0; i < len(h); i += 2 {
					req.Header.Set(h[i], h[i+1])
				}
				if err := req.Write(conn); err != nil {
					t.Fatal(err)
				}
				wait(t, p, func(c Counters, _ []Record) bool { return c.InFlight == 1 })
				_ = conn.Close()
			case tt.prompt != "":
				ask(t, p, "/v1/completions", completion(tt.prompt, "6"), hosted(engine.Prefill, "aa", d)...)
			}
			status, header, a := ask(t, d, "/v1/completions", completion(longPrompt, "6"), hosted(engine.Decode, "aa", p)...)
			if status != tt.status || header.Get(engine.HeaderKV) != tt.kv {
				t.Fatalf("%d %q, want %d %q", status, header.Get(engine.HeaderKV), tt.status, tt.kv)
			}
			if status == 200 && a.Choices[0].Text != want.Choices[0].Text {
				t.Errorf("text %q, want %q", a.Choices[0].Text, want.Choices[0].Text)
			}
		})
	}
}

// A request for another incarnation is refused before anything begins.
func TestEpoch(t *testing.T) {
	e := NewTest(t)
	if status, _, _ := ask(t, e, "/v1/completions", completion("hi", "1"), engine.HeaderEpoch, "7"); status != 200 {
		t.Errorf("an engine without an epoch refuses one: %d", status)
	}
	e.SetEpoch(7)
	for header, want := range map[string]int{"7": 200, "8": 421, "x": 421} {
		if status, _, _ := ask(t, e, "/v1/completions", completion("hi", "1"), engine.HeaderEpoch, header); status != want {
			t.Errorf("epoch %s: %d, want %d", header, status, want)
		}
	}
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	status, header, _ := ask(t, e, "/v1/completions", completion("hi", "1"), engine.HeaderEpoch, "7")
	if status != 421 || header.Get(engine.HeaderReason) != "stale_epoch" {
		t.Errorf("after a restart: %d %v", status, header)
	}
	time.AfterFunc(50*time.Millisecond, func() { e.SetEpoch(9) }) // the gateway has heard of it first
	if status, _, _ := ask(t, e, "/v1/completions", completion("hi", "1"), engine.HeaderEpoch, "9"); status != 200 {
		t.Errorf("of the epoch to come: %d", status)
	}
}

func TestBadLegs(t *testing.T) {
	e := NewTest(t)
	for name, h := range map[string][]string{
		"leg":      {engine.HeaderLeg, "sideways", engine.HeaderTransfer, "aa", engine.HeaderPeer, "p;1;a:1"},
		"transfer": {engine.HeaderLeg, "decode", engine.HeaderTransfer, "zz", engine.HeaderPeer, "p;1;a:1"},
		"peer":     {engine.HeaderLeg, "decode", engine.HeaderTransfer, "aa", engine.HeaderPeer, "p"},
	} {
		if status, head, _ := ask(t, e, "/v1/completions", completion("hi", "1"), h...); status != 400 || head.Get(engine.HeaderReason) != engine.ReasonBadLeg {
			t.Errorf("%s: %d", name, status)
		}
	}
	h := hosted(engine.Decode, "aa", e)
	if status, head, _ := ask(t, e, "/v1/completions", `{"prompt":["a","b"]}`, h...); status != 400 || head.Get(engine.HeaderReason) != engine.ReasonBadLeg {
		t.Errorf("two prompts: %d", status)
	}
}

// nixl plays vLLM's handshake: a prefill leg, then a decode leg with what it
// answered, changed by change.
func nixl(t *testing.T, p, d *Engine, prompt string, change func(map[string]any)) (int, answer) {
	t.Helper()
	body := strings.TrimSuffix(completion(longPrompt, "1"), "}")
	_, _, pre := ask(t, p, "/v1/completions", body+`,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}`, "X-Request-Id", "r1")
	if pre.KV == nil {
		return 0, pre
	}
	params := pre.KV
	change(params)
	b, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	body = strings.TrimSuffix(completion(prompt, "6"), "}")
	status, _, dec := ask(t, d, "/v1/completions", body+`,"kv_transfer_params":`+string(b)+`}`, "X-Request-Id", "r1")
	return status, dec
}

// vLLM's handshake, done right and in every way that has been seen to go wrong.
func TestNIXLTransfer(t *testing.T) {
	alone := NewTest(t)
	_, _, want := ask(t, alone, "/v1/completions", completion(longPrompt, "6"))
	same := func(map[string]any) {}
	tests := []struct {
		name            string
		prefill, decode string
		prompt          string
		change          func(map[string]any)
		status          int
		right           bool
		kv              string
	}{
		{"moved", "", "", longPrompt, same, 200, true, "moved"},
		{"key missing: recomputed silently", "", "", longPrompt, func(m map[string]any) { delete(m, "remote_engine_id") }, 200, true, "recomputed; missing_keys"},
		{"key missing, by the prefill engine", "rules: [{do: {kv: {delete: [remote_host]}}}]", "", longPrompt, same, 200, true, "recomputed; missing_keys"},
		{"key missing: engine dies", "", "kv: {missing: die}", longPrompt, func(m map[string]any) { delete(m, "remote_port") }, 500, false, ""},
		{"stale engine id", "rules: [{do: {kv: {set: {remote_engine_id: gone}}}}]", "", longPrompt, same, 200, true, "recomputed; stale_epoch"},
		{"unknown engine id: error", "", "kv: {stale: error}", longPrompt, func(m map[string]any) { m["remote_engine_id"] = "gone" }, 500, false, ""},
		{"another prompt: a wrong answer under 200", "", "kv: {stale: lie}", longPrompt + "?", same, 200, false, "moved"},
		{"dead peer: error", "", "kv: {dead: error}", longPrompt, func(m map[string]any) { m["remote_port"] = 1 }, 500, false, ""},
		{"null params", "rules: [{do: {kv: {no_params: true}}}]", "", longPrompt, same, 0, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, d := NewTest(t, YAML(tt.prefill)), NewTest(t, YAML(tt.decode))
			if strings.HasSuffix(tt.name, "dies") {
				// The answer and the death race; only the death is certain.
				conn := dial(t, d)
				sendRaw(t, conn, http.MethodPost, "/v1/completions", `{"prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}`)
				for d.Running() {
					time.Sleep(time.Millisecond)
				}
				return
			}
			status, a := nixl(t, p, d, tt.prompt, tt.change)
			if status != tt.status {
				t.Fatalf("status %d, want %d: %+v", status, tt.status, a)
			}
			if status != 200 {
				return
			}
			if right := a.Choices[0].Text == want.Choices[0].Text; right != tt.right {
				t.Errorf("text %q, should be right: %v", a.Choices[0].Text, tt.right)
			}
			if lied := a.Usage.Details.Cached > a.Usage.Prompt; lied != strings.Contains(tt.decode, "lie") {
				t.Errorf("usage %+v", a.Usage)
			}
			if r := d.Records(0); r[0].KV != tt.kv {
				t.Errorf("outcome %q, want %q", r[0].KV, tt.kv)
			}
		})
	}
}

// Parameters used twice are stale the second time.
func TestNIXLReplay(t *testing.T) {
	p, d := NewTest(t), NewTest(t)
	var params map[string]any
	nixl(t, p, d, longPrompt, func(m map[string]any) { params = m })
	b, _ := json.Marshal(params)
	body := strings.TrimSuffix(completion(longPrompt, "6"), "}") + `,"kv_transfer_params":` + string(b) + `}`
	ask(t, d, "/v1/completions", body)
	if r := d.Records(0); r[1].KV != "recomputed; unknown_transfer" {
		t.Errorf("second use: %q", r[1].KV)
	}
}

// Blocks nobody fetches are free again when their lease ends.
func TestLease(t *testing.T) {
	c := clock.NewVirtual(time.Unix(1_800_000_000, 0))
	p := NewTest(t, YAML("kv: {lease: 30s}"), func(o *Options) { o.Clock = c })
	body := strings.TrimSuffix(completion(longPrompt, "1"), "}") + `,"kv_transfer_params":{"do_remote_decode":true}}`
	ask(t, p, "/v1/completions", body)
	if held := p.Load().HeldBlocks; held != 2 {
		t.Errorf("%d blocks held", held)
	}
	for {
		if _, armed := c.Next(); armed {
			break
		}
		time.Sleep(time.Millisecond)
	}
	c.Advance(29 * time.Second)
	if p.Load().HeldBlocks == 0 {
		t.Error("free before the lease ended")
	}
	c.Advance(time.Second)
	for p.Load().HeldBlocks > 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestLinkExposed(t *testing.T) {
	l := Link{Setup: time.Millisecond, TokenBytes: 1000, BytesPerSecond: 1_000_000}
	tests := []struct {
		name    string
		groups  int
		prefill time.Duration
		want    time.Duration
	}{
		{"in bulk", 0, time.Second, 101 * time.Millisecond},
		{"hidden but for the last group", 10, time.Second, 11 * time.Millisecond},
		{"slower than the prefill", 10, 50 * time.Millisecond, 56 * time.Millisecond},
	}
	for _, tt := range tests {
		l.Groups = tt.groups
		if got := l.Exposed(unit.Tokens(100), tt.prefill); got.Round(time.Microsecond) != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
