package scripted

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/mix"
)

// route answers by method and path.
func (x *exchange) route() error {
	get, post := x.routes()
	path := x.r.URL.Path
	g, p := get[path], post[path]
	switch {
	case g == nil && p == nil:
		return x.json(http.StatusNotFound, map[string]string{"detail": "Not Found"})
	case g != nil && (x.r.Method == http.MethodGet || x.r.Method == http.MethodHead):
		return g()
	case p != nil && x.r.Method == http.MethodPost:
		return p()
	}
	allow := http.MethodGet
	if p != nil {
		allow = http.MethodPost
	}
	x.w.Header().Set("Allow", allow)
	return x.json(http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
}

func (x *exchange) routes() (get, post map[string]func() error) {
	get = map[string]func() error{
		"/health":    x.health,
		"/ping":      x.health,
		"/readyz":    x.health,
		"/livez":     func() error { x.out.header(http.StatusOK); return nil },
		"/version":   func() error { return x.json(http.StatusOK, map[string]string{"version": "scripted"}) },
		"/load":      x.serverLoad,
		"/metrics":   x.metrics,
		"/v1/models": x.listModels,
	}
	post = map[string]func() error{
		"/v1/chat/completions": func() error { return x.generate(true) },
		"/v1/completions":      func() error { return x.generate(false) },
		"/v1/embeddings":       x.embeddings,
		"/tokenize":            x.tokenize,
		"/detokenize":          x.detokenize,
		"/ping":                x.health,
		"/reset_prefix_cache":  x.resetCache,
	}
	return get, post
}

// generate answers a chat or completion request.
func (x *exchange) generate(chat bool) error {
	x.stage = stageQueued.String()
	if err := x.refuse(); err != nil {
		return x.explain(err)
	}
	kv, err := x.openKV() // first: whoever waits for a prefill leg hears that it was refused
	if err != nil {
		return x.explain(err)
	}
	if x.engine().draining.Load() {
		x.w.Header().Set("Connection", "close")
		return x.busy("draining", "The engine is draining.")
	}
	j, err := x.parseJob(chat)
	if err != nil {
		return x.explain(err)
	}
	return x.answerJob(j, kv)
}

// refuse checks that the request means this incarnation.
func (x *exchange) refuse() error {
	h := x.r.Header.Get(engine.HeaderEpoch)
	if h == "" || h == "0" || !x.engine().named.Load() {
		return nil
	}
	if meant, err := strconv.ParseUint(h, 10, 64); err == nil && x.engine().own.Is(x.ctx, fleet.Epoch(meant)) {
		return nil
	}
	x.w.Header().Set(engine.HeaderReason, "stale_epoch")
	return &problem{engine.StatusStaleEpoch, "StaleEpochError", "the request means another incarnation of this worker", ""}
}

func (x *exchange) health() error {
	phase := x.inc.healthPhase()
	if phase.Hang {
		x.stage = "hang"
		<-x.ctx.Done()
		return x.ctx.Err()
	}
	status := orDefault(phase.Status, http.StatusOK)
	if phase.Status == 0 && x.engine().draining.Load() {
		status = http.StatusServiceUnavailable
	}
	x.out.header(status)
	return nil
}

// healthPhase is the script's phase by now.
func (inc *incarnation) healthPhase() HealthPhase {
	phases := inc.e.play.Load().script.Health
	inc.mu.Lock()
	age := inc.e.opts.Clock.Now().Sub(inc.scripted)
	inc.mu.Unlock()
	for i, p := range phases {
		if age < p.For.D() || i == len(phases)-1 {
			return p
		}
		age -= p.For.D()
	}
	return HealthPhase{}
}

func (x *exchange) serverLoad() error {
	l := x.engine().Load()
	return x.json(http.StatusOK, map[string]int{"server_load": l.Running + l.Waiting})
}

type apiModel struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len"`
}

func (x *exchange) listModels() error {
	o := &x.engine().opts
	limit := int(o.MaxContext)
	var data []apiModel
	for i, name := range o.models() {
		m := apiModel{
			ID: name, Object: "model", Created: x.inc.started.Unix(), OwnedBy: "scripted",
			Root: name, MaxModelLen: &limit,
		}
		if i > 0 {
			m.Parent = &o.Model
		}
		data = append(data, m)
	}
	return x.json(http.StatusOK, struct {
		Object string     `json:"object"`
		Data   []apiModel `json:"data"`
	}{"list", data})
}

func (x *exchange) tokenize() error {
	var req struct {
		Model    string       `json:"model"`
		Prompt   string       `json:"prompt"`
		Messages []apiMessage `json:"messages"`
		Strings  bool         `json:"return_token_strs"`
		Open     bool         `json:"continue_final_message"`
	}
	if err := json.Unmarshal(x.body, &req); err != nil {
		return x.explain(decodeProblem(err))
	}
	if err := checkModel(&x.engine().opts, req.Model); err != nil {
		return x.explain(err)
	}
	text := req.Prompt
	if len(req.Messages) > 0 {
		var err error
		if text, err = renderChat(req.Messages, req.Open); err != nil {
			return x.explain(err)
		}
	}
	out := struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []uint32 `json:"tokens"`
		Strings     []string `json:"token_strs"`
	}{MaxModelLen: int(x.engine().opts.MaxContext), Tokens: Tokenize(text)}
	out.Count = len(out.Tokens)
	if req.Strings {
		for _, id := range out.Tokens {
			out.Strings = append(out.Strings, strings.ToValidUTF8(Detokenize([]uint32{id}), "\uFFFD"))
		}
	}
	b, err := json.Marshal(&out, json.FormatNilSliceAsNull(true))
	if err != nil {
		return err
	}
	return x.jsonBytes(http.StatusOK, b)
}

func (x *exchange) detokenize() error {
	var req struct {
		Model  string   `json:"model"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(x.body, &req); err != nil {
		return x.explain(decodeProblem(err))
	}
	if err := checkModel(&x.engine().opts, req.Model); err != nil {
		return x.explain(err)
	}
	text := strings.ToValidUTF8(Detokenize(req.Tokens), "\uFFFD")
	return x.json(http.StatusOK, map[string]string{"prompt": text})
}

func (x *exchange) resetCache() error {
	x.engine().ResetCache()
	x.out.header(http.StatusOK)
	return nil
}

// embeddingSize is the length of a made-up embedding.
const embeddingSize = 8

// embedding is a vector as a client asks for it: numbers, or the base64 of
// little-endian float32, which OpenAI's own clients ask for by default.
func embedding(v []float64, format string) any {
	if format != "base64" {
		return v
	}
	var b []byte
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(f)))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// embeddings makes a vector up for each input, the same for the same text.
func (x *exchange) embeddings() error {
	var input struct {
		Model  string         `json:"model"`
		Input  jsontext.Value `json:"input"`
		Format string         `json:"encoding_format"`
	}
	if err := json.Unmarshal(x.body, &input); err != nil {
		return x.explain(decodeProblem(err))
	}
	if err := checkModel(&x.engine().opts, input.Model); err != nil {
		return x.explain(err)
	}
	prompts, err := parsePrompts(input.Input)
	if err != nil {
		return x.explain(badRequest("input", "input is neither text, token ids nor a list of them"))
	}
	type vector struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	out := struct {
		Object string   `json:"object"`
		Model  string   `json:"model"`
		Data   []vector `json:"data"`
		Usage  apiUsage `json:"usage"`
	}{Object: "list", Model: orDefault(input.Model, x.engine().opts.Model)}
	for i, p := range prompts {
		g := newGenerator(p.text, 0)
		var v []float64
		for range embeddingSize {
			v = append(v, float64(int64(mix.Bits(g.hash.Sum64())))/(1<<63))
			g.next()
		}
		out.Data = append(out.Data, vector{Object: "embedding", Index: i, Embedding: embedding(v, input.Format)})
		out.Usage.Prompt += len(p.ids)
	}
	out.Usage.Total = out.Usage.Prompt
	return x.json(http.StatusOK, &out)
}
