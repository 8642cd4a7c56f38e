package serve

import (
	"fmt"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/core/prefix"
	"github.com/yardmaster/yardmaster/core/prompt"
	"github.com/yardmaster/yardmaster/core/tokens"
)

// document is n bytes of prose that does not repeat much, as it stands in JSON.
func document(n int) string {
	words := strings.Fields("the committee met on tuesday to consider whether northern line should be extended nobody could agree objections were filed because of costs and noise which a report of the council had put at")
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%s %s", words[i%len(words)], words[(i*i+i/7)%len(words)])
		switch i % 11 {
		case 0:
			fmt.Fprintf(&b, " %d", i)
		case 5:
			b.WriteString(",")
		case 10:
			b.WriteString(".\\n")
		}
		b.WriteString(" ")
	}
	return b.String()[:n]
}

// What a request's identity costs the gateway: for the first time, when its text
// is known, and where only bytes are.
func BenchmarkIdentity(b *testing.B) {
	vocab := modelVocab(b)
	tok, err := tokens.New(vocab)
	if err != nil {
		b.Fatal(err)
	}
	tpl, err := tokens.ParseTemplate(tok.ChatTemplate())
	if err != nil {
		b.Fatal(err)
	}
	texts := map[string]*prompt.Text{"m": prompt.NewText(tok, tpl)}
	system := document(48 << 10)
	turns := strings.Repeat(`{"role":"user","content":"What is the next item?"},{"role":"assistant","content":"The next item is the budget, which was moved."},`, 50)
	bodies := []struct{ name, path, body string }{
		{"short-chat", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"What is the capital of France?"}]}`},
		{"48KB-system", "/v1/chat/completions", `{"model":"m","messages":[{"role":"system","content":"` + system + `"},{"role":"user","content":"What now?"}]}`},
		{"100-turns", "/v1/chat/completions", `{"model":"m","messages":[` + turns + `{"role":"user","content":"What now?"}]}`},
		{"48KB-completion", "/v1/completions", `{"model":"m","prompt":"` + system + `"}`},
	}
	for _, bb := range bodies {
		body := []byte(bb.body)
		for _, mode := range []string{"cold", "warm", "bytes"} {
			b.Run(bb.name+"/"+mode, func(b *testing.B) {
				to := prompt.Target{Scope: prefix.Scope{Base: "m"}}
				if mode == "bytes" {
					to.Scope.Base = "unknown"
				}
				r := prompt.New(prompt.Options{Texts: texts})
				var s prompt.Scratch
				b.ReportAllocs()
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					if mode == "cold" {
						b.StopTimer()
						r = prompt.New(prompt.Options{Texts: texts})
						b.StartTimer()
					}
					id := r.Identify(b.Context(), prompt.KindOf(bb.path), body, to, &s)
					if id.Exact != (mode != "bytes") {
						b.Fatalf("%+v", id)
					}
				}
			})
		}
	}
}
