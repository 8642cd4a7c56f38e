package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
)

// guests are policies for scripts, built from text.
func guests() map[string]abitest.Policy {
	column := []string{"queued_tokens"}
	score := func(text string) string { return abitest.Loop("local.get 1 " + text + " f32.store @out") }
	return map[string]abitest.Policy{
		"least": {Columns: column, Locals: "i32", Code: score("local.get 1 f32.load @0")},
		"most":  {Columns: column, Locals: "i32", Code: score("local.get 1 f32.load @0 f32.neg")},
		// It does what it should until a binding says otherwise, so that no trial can find it.
		"trap": {
			Columns: column, Locals: "i32", Params: []abi.Param{{Name: "trap", Type: abi.Float}},
			Code: "i32.const @params f64.load 0 f64.const 1 f64.eq if unreachable end " + score("local.get 1 f32.load @0"),
		},
		"endless":  {Columns: column, Code: "loop br 0 end i32.const 0"},
		"nowhere":  {Manifest: `{"abi":"1.0","kind":"gateway","name":"x","version":"1"}`},
		"observer": {Kind: abi.Observer, Columns: []string{"ttft_ms"}},
	}
}

// wasm is the script command `wasm FILE GUEST NAME VERSION`: it writes one of guests
// under a name and version.
func wasm(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: wasm FILE GUEST NAME VERSION")
	}
	p, ok := guests()[args[1]]
	if !ok {
		ts.Fatalf("no guest is called %q", args[1])
	}
	p.Name, p.Version = args[2], args[3]
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), p.Build(), 0o600))
}

// askTime bounds how long `ask -until` goes on.
const askTime = 20 * time.Second

// ask is the script command `ask [-n COUNT] [-status CODE] [-until] [-key KEY]`: it
// sends requests to the gateway at $API, each of a session of its own, prints where
// each went, and puts the last one's id into $ID. All must have the status; with -until
// it goes on until one has.
func ask(ts *testscript.TestScript, neg bool, args []string) {
	f := flag.NewFlagSet("ask", flag.ContinueOnError)
	count, want, key := f.Int("n", 1, ""), f.Int("status", http.StatusOK, ""), f.String("key", "", "")
	until := f.Bool("until", false, "")
	if err := f.Parse(args); err != nil || neg || f.NArg() > 0 {
		ts.Fatalf("usage: ask [-n COUNT] [-status CODE] [-until] [-key KEY]")
	}
	deadline := time.Now().Add(askTime)
	for i := 0; i < *count || *until; i++ {
		status, text := askOnce(ts, fmt.Sprintf("session-%d", i), *key)
		switch {
		case *until && status == *want:
			return
		case *until && time.Now().Before(deadline):
			time.Sleep(50 * time.Millisecond)
		case status != *want:
			ts.Fatalf("request %d: status %d, want %d: %s", i, status, *want, text)
		}
	}
}

// askOnce sends one request and prints where it went.
func askOnce(ts *testscript.TestScript, session, key string) (status int, text []byte) {
	const body = `{"model":"scripted","max_tokens":1,"messages":[{"role":"user","content":"Hello!"}]}`
	r, err := http.NewRequest(http.MethodPost, "http://"+ts.Getenv("API")+"/v1/chat/completions", strings.NewReader(body)) //nolint:noctx // the client has a timeout
	ts.Check(err)
	for name, value := range map[string]string{"content-type": "application/json", "x-yardmaster-explain": "1", "x-session-id": session} {
		r.Header.Set(name, value)
	}
	if key != "" {
		r.Header.Set("authorization", "Bearer "+key)
	}
	resp, err := (&http.Client{Timeout: askTime}).Do(r)
	ts.Check(err)
	text, err = io.ReadAll(resp.Body)
	ts.Check(err)
	ts.Check(resp.Body.Close())
	ts.Setenv("ID", resp.Header.Get("x-request-id"))
	fmt.Fprintf(ts.Stdout(), "%d %s\n", resp.StatusCode, resp.Header.Get("x-yardmaster-path"))
	if resp.StatusCode >= http.StatusBadRequest {
		fmt.Fprintf(ts.Stdout(), "retry-after %s\n%s\n", resp.Header.Get("retry-after"), bytes.TrimSpace(text))
	}
	return resp.StatusCode, text
}
