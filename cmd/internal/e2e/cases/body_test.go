package cases

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/gpu/engine/scripted"
)

// last is the body of the last request that the engine saw.
func last(t *testing.T, e *scripted.Engine) string {
	t.Helper()
	seen := asked(e)
	if len(seen) == 0 {
		t.Fatal("the engine saw nothing")
	}
	return string(seen[len(seen)-1].Body)
}

// Case 10. Symptom: long prompts and images fail at sizes nobody documented.
// Right: every size up to the limit arrives whole; one byte more is a 413 in
// OpenAI's shape that names the limit, and reaches no engine.
func TestBodiesOfEverySizeUpToTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 21 << 20
	e := one(t, `rules: [{match: {route: /v1/chat*}, do: {respond: {headers: {Content-Type: application/json}, text: '{"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}'}}}]`)
	g := serve(t, []*scripted.Engine{e}, func(c *config.Gateway) { c.MaxBody = limit })
	for _, size := range []int{1 << 10, 31 << 10, 32 << 10, 32<<10 + 1, 129 << 10, 1 << 20, 1<<20 + 1, 20 << 20, limit - 1, limit} {
		body := sized(size)
		if r := g.ask(chatPath, body); r.status != http.StatusOK || last(t, e) != body {
			t.Errorf("%d bytes: status %d, %s", size, r.status, r.body)
		}
	}
	seen := len(asked(e))
	for _, size := range []int{limit + 1, limit + 100_000, 2 * limit} {
		r := g.ask(chatPath, sized(size))
		wantRefusal(t, r, http.StatusRequestEntityTooLarge)
		if !strings.Contains(r.body, strconv.Itoa(limit)) {
			t.Errorf("the limit is not named: %s", r.body)
		}
	}
	// The same without a stated length.
	for _, size := range []int{1000, limit, limit + 1} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.URL()+chatPath, io.MultiReader(strings.NewReader(sized(size))))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if want := map[bool]int{true: http.StatusRequestEntityTooLarge, false: http.StatusOK}[size > limit]; resp.StatusCode != want {
			t.Errorf("%d bytes in chunks: status %d, want %d", size, resp.StatusCode, want)
		}
	}
	if n := len(asked(e)); n != seen+2 {
		t.Errorf("%d bodies over the limit reached the engine", n-seen-2)
	}
}

// sized is a chat request of exactly n bytes.
func sized(n int) string {
	const head, tail = `{"model":"scripted","messages":[{"role":"user","content":"`, `"}]}`
	return head + strings.Repeat("a", n-len(head)-len(tail)) + tail
}

// spliced is what a stream's body gains on its way, and nothing else.
const spliced = `"stream_options":{"include_usage":true},`

// Case 11. Symptom: typed re-serialisation loses or renames fields, respells
// numbers and escapes. Right: what the client wrote is what the engine reads,
// byte for byte, whatever it is.
func TestUnknownFieldsPassByteForByte(t *testing.T) {
	t.Parallel()
	e := one(t, `rules: [{match: {route: /v1/chat*}, do: {respond: {headers: {Content-Type: application/json}, text: '{"choices":[]}'}}}]`)
	g := serve(t, []*scripted.Engine{e})
	var fields []string
	for i := range 49 {
		fields = append(fields, fmt.Sprintf(`"x_%d_Key é":{"b":[%d,{"c":null,"deep":[[["\u00e9\/"]]]}],"a":true}`, i, i))
	}
	bodies := []string{
		`{` + strings.Join(fields, ",") + `,"model":"scripted"}`,
		`{"model":"scripted","seed":9223372036854775807,"a":18446744073709551617,"b":-0,"c":1.0,"d":1e400,"e":0.1000,"f":1E+2,"g":123456789.123456789123456789}`,
		"{ \"model\" :\t\"scripted\" , \r\n \"tools\":[ { } ],\"tool_choice\":\"none\",\"return_token_ids\":true,\"chat_template_kwargs\":{\"z\":1,\"a\":2} }",
		`{"z":1,"model":"scripted","a":2,"z2":{"model":"other","stream":true,"kv_transfer_params":{"x":1}}}`,
		`{"model":"scripted","text":"\ud83d\ude00 \u0000 \"\\ 😀 \/","empty":"","list":[],"object":{}}`,
		`{"model":"scripted","dup":1,"dup":2}`,
	}
	for _, body := range bodies {
		g.ask(chatPath, body)
		if got := last(t, e); got != body {
			t.Errorf("not streamed:\n%s", cmp.Diff(body, got))
		}
		g.ask(chatPath, strings.Replace(body, "{", `{"stream":true,`, 1))
		if got := strings.Replace(last(t, e), spliced, "", 1); got != strings.Replace(body, "{", `{"stream":true,`, 1) {
			t.Errorf("streamed:\n%s", cmp.Diff(body, got))
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		body := `{` + members(rt, 3) + `"model":"scripted"}`
		g.ask(chatPath, body)
		if got := last(t, e); got != body {
			rt.Fatalf("%s", cmp.Diff(body, got))
		}
	})
}

// members draws members of an object, each with a comma behind it.
func members(t *rapid.T, depth int) string {
	var b strings.Builder
	for i := range rapid.IntRange(0, 6).Draw(t, "members") {
		key, err := json.Marshal(fmt.Sprintf("k%d%s", i, rapid.String().Draw(t, "key")))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s%s:%s%s,", space(t), key, space(t), anyValue(t, depth))
	}
	return b.String()
}

func space(t *rapid.T) string { return rapid.StringMatching(`[ \t\n\r]{0,2}`).Draw(t, "space") }

func anyValue(t *rapid.T, depth int) string {
	switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
	case kind == 0:
		return rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "word")
	case kind == 1:
		return rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?`).Draw(t, "number")
	case kind == 2:
		return `"` + rapid.StringMatching(`([a-zé你]|\\u[0-9a-f]{4}|\\[nrtbf"/\\]){0,12}`).Draw(t, "escaped") + `"`
	case kind == 3 && depth > 0:
		return "[" + anyValue(t, depth-1) + "," + anyValue(t, depth-1) + space(t) + "]"
	case depth > 0:
		return "{" + members(t, depth-1) + `"end":0}`
	}
	return `""`
}

// What only a gateway may say to an engine never comes from a client: it names
// hosts to dial, ranks and workers.
func TestInternalFieldsNeverReachAnEngine(t *testing.T) {
	t.Parallel()
	e := one(t, "")
	g := serve(t, []*scripted.Engine{e})
	for _, field := range []string{
		`"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"169.254.169.254","remote_port":80}`,
		`"ec_transfer_params":{"a":1}`, `"disaggregated_params":{"request_type":"context_only"}`,
		`"bootstrap_host":"10.0.0.1"`, `"bootstrap_port":8998`, `"bootstrap_room":[1,2]`,
		`"data_parallel_rank":3`, `"routed_dp_rank":1`, `"kv_transfer\u005fparams":{"do_remote_prefill":true}`,
	} {
		for _, body := range []string{
			`{` + field + `,"model":"scripted","prompt":"x","max_tokens":1}`,
			`{"model":"scripted",` + field + `,"prompt":"x","max_tokens":1,` + field + `}`,
			`{"model":"scripted","prompt":"x","stream":true,"max_tokens":1, ` + field + ` }`,
		} {
			before := len(asked(e))
			r := g.ask(completionPath, body)
			if r.status == http.StatusBadRequest {
				continue // refused
			}
			wantGood(t, r)
			if seen := last(t, e); len(asked(e)) != before+1 || gjson.Get(seen, strings.Trim(strings.SplitN(field, ":", 2)[0], `"`)).Exists() || strings.Contains(seen, "169.254") {
				t.Errorf("%s came through: %s", field, seen)
			}
		}
	}
	internal := []string{
		"X-Yardmaster-Leg", "decode", "X-Yardmaster-Transfer", "00000000000000ff", "X-Yardmaster-Peer", "w;1;10.0.0.1:1",
		"X-Yardmaster-Epoch", "9", "X-Data-Parallel-Rank", "5", "X-Worker-Id", "w1", "X-Data-Parallel-Host", "h",
		"Connection", "X-Request-Id", "Cookie", "secret=1",
	}
	wantGood(t, g.ask(completionPath, prompt, internal...))
	seen := asked(e)
	for i := 0; i < len(internal); i += 2 {
		if v := seen[len(seen)-1].Header.Get(internal[i]); v == internal[i+1] {
			t.Errorf("header %s: %q came through", internal[i], v)
		}
	}
}

// Case 12. Symptom: errors that clients cannot read; faults of the client as
// 500, which retries and pages. Right: each is a 4xx in OpenAI's nested shape,
// with a string code, and no engine sees it.
func TestBadRequestsAreTheClientsAndSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	e := one(t, "")
	g := serve(t, []*scripted.Engine{e}, func(c *config.Gateway) { c.MaxBody = 1 << 20 })
	deep := strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000)
	bodies := map[string]string{
		"empty": "", "space": "  ", "null": "null", "text": "hello", "number": "1", "array": "[]", "half": `{"model":"scripted"`,
		"two values": chat + chat, "trailing": chat + "x", "comma": `{"model":"scripted",}`, "single quotes": `{'model':'scripted'}`,
		"no model": `{"messages":[]}`, "model null": `{"model":null}`, "model number": `{"model":3}`, "model empty": `{"model":""}`,
		"model list": `{"model":["scripted"]}`, "model twice": `{"model":"scripted","model":"other"}`,
		"model twice, escaped": `{"model":"scripted","mod\u0065l":"other"}`,
		"model very long":      `{"model":"` + strings.Repeat("m", 100_000) + `"}`,
		"stream text":          `{"model":"scripted","stream":"yes"}`, "stream number": `{"model":"scripted","stream":1}`,
		"stream twice": `{"model":"scripted","stream":true,"stream":false}`, "options text": `{"model":"scripted","stream":true,"stream_options":"usage"}`,
		"deep": `{"model":"scripted","x":` + deep + `}`, "control character": "{\"model\":\"scripted\",\"x\":\"\x01\"}",
		"byte order mark": "\ufeff" + chat, "NaN": `{"model":"scripted","x":NaN}`, "bad escape": `{"model":"scripted","x":"\q"}`,
		"leading zero": `{"model":"scripted","x":01}`, "too large": sized(1<<20 + 1), "unknown model": `{"model":"other","messages":[]}`,
	}
	for name, body := range bodies {
		for _, path := range []string{chatPath, completionPath} {
			r := g.ask(path, body)
			if r.status < 400 || r.status > 499 || r.header.Get("X-Request-Id") == "" || r.header.Get("X-Yardmaster-Reason") == "" {
				t.Errorf("%s: status %d, headers %v", name, r.status, r.header)
			}
			wantRefusal(t, r, r.status)
		}
	}
	if n := len(asked(e)); n != 0 {
		t.Errorf("the engine saw %d of them", n)
	}
	if r := g.ask(chatPath, `{"model":"other"}`); r.status != http.StatusNotFound || gjson.Get(r.body, "error.code").Str != "model_not_found" {
		t.Errorf("unknown model: status %d, %s", r.status, r.body)
	}
	if r := g.ask("/v1/nothing", chat); r.status != http.StatusNotFound {
		t.Errorf("unknown route: status %d, %s", r.status, r.body)
	}
}

// Case 12: errors that engines find, in all the shapes engines have.
func TestEnginesErrorsKeepTheirMeaningInOneShape(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, do string
		status   int
		says     string
	}{
		{"nested", `error: {kind: context}`, 400, "8193 input tokens"},
		{"flat", `error: {kind: context, flat: true}`, 400, "8193 input tokens"},
		{"numeric code", `error: {status: 404, message: "no adapter", type: NotFoundError}`, 404, "no adapter"},
		{"FastAPI text", `respond: {status: 422, headers: {Content-Type: application/json}, text: '{"detail":"bad thing"}'}`, 400, "bad thing"},
		{"FastAPI list", `respond: {status: 422, headers: {Content-Type: application/json}, text: '{"detail":[{"loc":["body","n"],"msg":"too big","type":"x"}]}'}`, 400, "too big"},
		{"message only", `respond: {status: 400, headers: {Content-Type: application/json}, text: '{"message":"odd"}'}`, 400, "odd"},
		{"a string", `respond: {status: 400, headers: {Content-Type: application/json}, text: '{"error":"odd string"}'}`, 400, "odd string"},
		{"plain text", `respond: {status: 400, headers: {Content-Type: text/plain}, text: "odd text"}`, 400, ""},
		{"nothing", `respond: {status: 400}`, 400, ""},
		{"a page", `respond: {status: 502, headers: {Content-Type: text/html}, text: "<html>Bad Gateway</html>"}`, 502, ""},
		{"rate limit", `error: {kind: rate_limit, retry_after: "3"}`, 429, ""},
		{"busy", `error: {kind: busy}`, 503, ""},
		{"internal", `error: {kind: internal}`, 500, ""},
	}
	for _, tt := range tests {
		for _, body := range []string{chat, chatSSE} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, len(body)), func(t *testing.T) {
				t.Parallel()
				e := one(t, "rules: [{match: {route: /v1/chat*}, do: {"+tt.do+"}}]")
				g := serve(t, []*scripted.Engine{e})
				r := g.ask(chatPath, body)
				wantRefusal(t, r, tt.status)
				if !strings.Contains(gjson.Get(r.body, "error.message").Str, tt.says) {
					t.Errorf("it does not say %q: %s", tt.says, r.body)
				}
				if after := r.header.Get("Retry-After"); tt.name == "rate limit" && after != "3" {
					t.Errorf("retry-after is %q", after)
				}
				if strings.Contains(r.body, e.Addr()) {
					t.Errorf("it names the engine: %s", r.body)
				}
			})
		}
	}
}

// Case 38. Symptom: small requests cost minutes of CPU, megabytes of headers are
// taken, and what media URLs name is fetched. Right: each is answered within
// seconds at most, and the gateway never dials what a client names.
func TestSmallBodiesDoNotCostMuch(t *testing.T) {
	t.Parallel()
	e := one(t, `rules: [{match: {route: /v1/chat*}, do: {respond: {headers: {Content-Type: application/json}, text: '{"choices":[]}'}}}]`)
	g := serve(t, []*scripted.Engine{e})
	stops := `{"model":"scripted","stop":[` + strings.Repeat(`"a",`, 500_000) + `"b"]}`
	wide := `{"model":"scripted",` + strings.Repeat(`"k":1,`, 300_000) + `"z":1}`
	tests := map[string]string{
		"500k stops": stops, "300k fields": wide, "streamed wide": strings.Replace(wide, "{", `{"stream":true,`, 1),
		"depth 10k":     `{"model":"scripted","x":` + strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000) + `}`,
		"depth 1M":      `{"model":"scripted","x":` + strings.Repeat(`[`, 1_000_000) + strings.Repeat("]", 1_000_000) + `}`,
		"unclosed":      `{"model":"scripted","x":` + strings.Repeat(`[`, 1_000_000),
		"long number":   `{"model":"scripted","x":` + strings.Repeat(`9`, 1_000_000) + `}`,
		"all escapes":   `{"model":"scripted","messages":[{"role":"user","content":"` + strings.Repeat(`\u0041`, 300_000) + `"}]}`,
		"many messages": `{"model":"scripted","messages":[` + strings.Repeat(`{"role":"user","content":"a"},`, 50_000) + `{}]}`,
		"many prompts":  `{"model":"scripted","messages":[],"prompt":[` + strings.Repeat(`[1],`, 200_000) + `[1]]}`,
	}
	for name, body := range tests {
		start := time.Now()
		r := g.ask(chatPath, body)
		if r.err != nil || r.status == 0 || r.status >= 500 && r.status != http.StatusBadGateway {
			t.Errorf("%s: status %d, %v, %s", name, r.status, r.err, r.body)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	for _, size := range []int{1 << 20, 8 << 20} {
		c := dial(t, g.Addr())
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\nX-Big: %s\r\n\r\n{}", chatPath, strings.Repeat("h", size))
		answer, _ := io.ReadAll(io.LimitReader(c, 64))
		if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 4") {
			t.Errorf("a header of %d bytes: %q", size, answer)
		}
	}
	wantGood(t, g.ask(completionPath, prompt))
}

// Case 38: media is the engines' to fetch, or nobody's.
func TestTheGatewayDialsNothingThatAClientNames(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	trap, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close() //nolint:errcheck // it only had to be there
	var dialled atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			dialled.Add(1)
			_ = c.Close()
		}
	}()
	bait := "http://" + trap.Addr().String() + "/latest/meta-data"
	// An engine that answers with a redirect must not lead the gateway elsewhere.
	e := one(t, fmt.Sprintf(`rules: [{match: {route: /v1/comp*}, do: {respond: {status: 302, headers: {Location: %q}}}}]`, bait))
	g := serve(t, []*scripted.Engine{e})
	for _, part := range []string{
		`{"type":"image_url","image_url":{"url":"` + bait + `"}}`, `{"type":"video_url","video_url":{"url":"` + bait + `"}}`,
		`{"type":"input_audio","input_audio":{"data":"` + bait + `"}}`, `{"type":"file","file":{"file_id":"` + bait + `"}}`,
	} {
		g.ask(chatPath, `{"model":"scripted","messages":[{"role":"user","content":[`+part+`]}]}`)
	}
	if r := g.ask(completionPath, prompt, "Host", trap.Addr().String(), "X-Forwarded-Host", trap.Addr().String()); r.status == http.StatusOK || r.status == http.StatusFound {
		t.Errorf("a redirect was taken for an answer: %d %s", r.status, r.body)
	}
	_ = trap.Close()
	<-done
	if n := dialled.Load(); n != 0 {
		t.Errorf("the gateway dialled what a client named %d times", n)
	}
}

// Case 28. Symptom: a gateway starts with a configuration that fails every
// request. Right: what cannot work is refused at the start, with exit code 2, by
// the same path that `config validate` takes, and says where.
func TestBadConfigurationsAreRefusedWithTheirPlace(t *testing.T) {
	t.Parallel()
	bad := map[string]string{
		"unknown section": "gatway:\n  listen: :1\n", "unknown key": "gateway:\n  lisen: 127.0.0.1:1\n", "unknown nested": "gateway:\n  listen:\n    port: 1\n",
		"not YAML": "gateway: [\n", "tab": "gateway:\n\tlisten: :1\n", "a list": "- gateway\n", "a word": "gateway\n", "twice": "gateway:\n  explain: true\n  explain: false\n",
		"section twice": "gateway:\n  explain: true\ngateway:\n  explain: true\n", "two documents": "gateway: {}\n---\nlog: {}\n",
		"no port": "gateway:\n  listen: localhost\n", "port too high": "gateway:\n  listen: 127.0.0.1:70000\n", "listen number": "gateway:\n  listen: 8080\n",
		"url without scheme": "gateway:\n  engine: [10.0.0.1:8000]\n", "url of files": "gateway:\n  engine: [\"file:///x\"]\n", "url with password": "gateway:\n  engine: [\"http://a:b@h:1\"]\n",
		"unknown policy": "gateway:\n  policy: random\n", "empty policy": "gateway:\n  policy: \"\"\n", "bad weights": "gateway:\n  policy: sticky=x\n", "unknown in blend": "gateway:\n  policy: sticky=1,nope=2\n",
		"unknown mode": "gateway:\n  disaggregate: sometimes\n", "zero bodies": "gateway:\n  max-body: 0\n", "size without unit": "gateway:\n  max-body: 64 megs\n", "negative size": "gateway:\n  max-body: -1MiB\n",
		"no requests": "gateway:\n  max-in-flight: 0\n", "text as number": "gateway:\n  max-in-flight: many\n", "fraction": "gateway:\n  max-in-flight: 1.5\n",
		"duration without unit": "gateway:\n  idle-timeout: 30\n", "negative duration": "gateway:\n  idle-timeout: -1s\n", "duration too long": "gateway:\n  request-timeout: 9000h\n",
		"boolean word": "gateway:\n  explain: maybe\n", "log level": "log:\n  level: loud\n", "too short": "gateway:\n  first-token-timeout: 1ns\n",
	}
	for name, text := range bad {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "yardmaster.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			validated, said := runBinary(t, "config", "validate", file)
			// An engine and a free port, so that nothing else can be at fault.
			started, alsoSaid := runBinary(t, "gateway", "--config", file, "--engine", "http://127.0.0.1:1", "--listen", "127.0.0.1:0")
			if validated != 2 || started != 2 {
				t.Errorf("validate ends with %d, gateway with %d, want 2: %s\n%s", validated, started, said, alsoSaid)
			}
			if place := file + ":"; !strings.Contains(said, place) || !strings.Contains(alsoSaid, place) {
				t.Errorf("the place is missing: %s\n%s", said, alsoSaid)
			}
		})
	}
}
