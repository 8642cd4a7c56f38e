// Command go runs the official openai client for Go, unmodified, against the
// gateway. The driver one folder up starts it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func main() {
	if err := run(cases); err != nil {
		fmt.Fprintln(os.Stderr, "clients/go:", err)
		os.Exit(1)
	}
}

type testCase struct {
	name string
	run  func(context.Context) string // the result is shown beside the case's
}

var cases = []testCase{
	{"models", models},
	{"chat", chat},
	{"chat_stream", chatStream},
	{"chat_stream_usage", chatStreamUsage},
	{"chat_stream_n", chatStreamN},
	{"completions", completions},
	{"completions_stream", completionsStream},
	{"embeddings", embeddings},
	{"tools", tools},
	{"logprobs", logprobs},
	{"request_fields", requestFields},
	{"answer_fields", answerFields},
	{"unicode", unicode},
	{"errors", faults},
	{"retry_after", retryAfter},
	{"retry_forbidden", retryForbidden},
	{"retry_multiplies", retryMultiplies},
	{"stream_error", streamError},
	{"stream_cut", streamCut},
	{"stream_ends_early", streamEndsEarly},
	{"heartbeat", heartbeat},
	{"cancel_before_headers", cancelBeforeHeaders},
	{"cancel_queued", cancelQueued},
	{"cancel_before_token", cancelBeforeToken},
	{"cancel_between_tokens", cancelBetweenTokens},
	{"cancel_whole", cancelWhole},
	{"cancel_break", cancelBreak},
	{"timeout", timeout},
	{"keep_alive", keepAlive},
	{"concurrent", concurrent},
}

// client talks to the gateway with default settings; strict to the other.
func client(opts ...option.RequestOption) *openai.Client { return clientOf(place.Gateway, opts...) }

func strict(opts ...option.RequestOption) *openai.Client { return clientOf(place.Strict, opts...) }

func clientOf(base string, opts ...option.RequestOption) *openai.Client {
	c := openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL(base), option.WithAPIKey("key"), option.WithMaxRetries(0),
	}, opts...)...)
	return &c
}

const question = "What does a yardmaster do?"

func ask(model, content string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:     model,
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage(content)},
		MaxTokens: openai.Int(8),
	}
}

func withUsage(p openai.ChatCompletionNewParams) openai.ChatCompletionNewParams {
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	return p
}

// stream reads a stream to its end.
func stream(ctx context.Context, c *openai.Client, p openai.ChatCompletionNewParams, opts ...option.RequestOption) ([]openai.ChatCompletionChunk, error) {
	var chunks []openai.ChatCompletionChunk
	s := c.Chat.Completions.NewStreaming(ctx, p, opts...)
	defer s.Close() //nolint:errcheck // what matters is its Err
	for s.Next() {
		chunks = append(chunks, s.Current())
	}
	return chunks, s.Err()
}

func textOf(chunks []openai.ChatCompletionChunk, index int64) string {
	var b strings.Builder
	for _, k := range chunks {
		for _, c := range k.Choices {
			if c.Index == index {
				b.WriteString(c.Delta.Content)
			}
		}
	}
	return b.String()
}

// fault is the client's error for a status, which err must be.
func fault(err error) *openai.Error {
	check(err != nil, "nothing was returned as an error")
	e, ok := errors.AsType[*openai.Error](err)
	check(ok, "the error is a %T: %v", err, err)
	return e
}

func models(ctx context.Context) string {
	var ids []string
	for _, m := range must(client().Models.List(ctx)).Data {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	equal(ids, []string{"narrow", "plain", "twin"}, "models")
	equal(must(client().Models.Get(ctx, "plain")).ID, "plain", "model")
	_, err := client().Models.Get(ctx, "nobody")
	e := fault(err)
	equal(e.Code, "model_not_found", "code")
	equal(e.StatusCode, http.StatusNotFound, "status")
	return ""
}

func chat(ctx context.Context) string {
	var resp *http.Response
	a := must(client().Chat.Completions.New(ctx, ask("plain", question), option.WithResponseInto(&resp)))
	check(a.Choices[0].Message.Content != "", "no content")
	equal(a.Choices[0].FinishReason, "length", "finish_reason")
	equal(a.Usage.CompletionTokens, 8, "completion_tokens")
	equal(a.Usage.TotalTokens, a.Usage.PromptTokens+8, "total_tokens")
	check(resp.Header.Get("X-Request-Id") != "", "no request id")
	return ""
}

func chatStream(ctx context.Context) string {
	whole := must(client().Chat.Completions.New(ctx, ask("plain", question)))
	chunks := must(stream(ctx, client(), ask("plain", question)))
	equal(textOf(chunks, 0), whole.Choices[0].Message.Content, "text")
	equal(chunks[0].Choices[0].Delta.Role, "assistant", "role")
	var finished []string
	for _, k := range chunks {
		check(len(k.Choices) == 1 && !k.JSON.Usage.Valid(), "usage came unasked")
		if r := k.Choices[0].FinishReason; r != "" {
			finished = append(finished, r)
		}
	}
	equal(finished, []string{"length"}, "finish_reason")
	return ""
}

func chatStreamUsage(ctx context.Context) string {
	chunks := must(stream(ctx, client(), withUsage(ask("plain", question))))
	last := len(chunks) - 1
	equal(len(chunks[last].Choices), 0, "choices of the usage chunk")
	equal(chunks[last].Usage.CompletionTokens, 8, "completion_tokens")
	equal(chunks[last-1].Choices[0].FinishReason, "length", "finish_reason before usage")
	refused := ask("plain", question)
	refused.StreamOptions.IncludeUsage = openai.Bool(false)
	for _, k := range slices.Concat(chunks[:last], must(stream(ctx, client(), refused))) {
		check(len(k.Choices) > 0 && !k.JSON.Usage.Valid(), "usage came early or though refused")
	}
	return ""
}

func chatStreamN(ctx context.Context) string {
	p := ask("plain", question)
	p.N, p.Seed, p.Temperature = openai.Int(2), openai.Int(7), openai.Float(1)
	whole := must(client().Chat.Completions.New(ctx, p))
	chunks := must(stream(ctx, client(), withUsage(p)))
	var finished, usage []int64
	for _, k := range chunks {
		for _, c := range k.Choices {
			if c.FinishReason != "" {
				finished = append(finished, c.Index)
			}
		}
		if k.JSON.Usage.Valid() {
			usage = append(usage, k.Usage.CompletionTokens)
		}
	}
	for i := range int64(2) {
		equal(textOf(chunks, i), whole.Choices[i].Message.Content, "text")
	}
	slices.Sort(finished)
	equal(finished, []int64{0, 1}, "finished choices")
	equal(usage, []int64{16}, "completion_tokens")
	return ""
}

func completions(ctx context.Context) string {
	p := openai.CompletionNewParams{Model: "plain", MaxTokens: openai.Int(6), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The yard")}}
	a := must(client().Completions.New(ctx, p))
	check(a.Choices[0].Text != "", "no text")
	equal(a.Usage.CompletionTokens, 6, "completion_tokens")
	p.Prompt = openai.CompletionNewParamsPromptUnion{OfArrayOfStrings: []string{"The yard", "The train"}}
	several := must(client().Completions.New(ctx, p))
	equal(len(several.Choices), 2, "choices")
	equal(several.Choices[0].Text, a.Choices[0].Text, "text of the first")
	return ""
}

func completionsStream(ctx context.Context) string {
	p := openai.CompletionNewParams{Model: "plain", MaxTokens: openai.Int(6), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("The yard")}}
	whole := must(client().Completions.New(ctx, p))
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	c := client()
	s := c.Completions.NewStreaming(ctx, p)
	var text strings.Builder
	var last openai.Completion
	for s.Next() {
		last = s.Current()
		for _, c := range last.Choices {
			text.WriteString(c.Text)
		}
	}
	check(s.Err() == nil, "%v", s.Err())
	equal(text.String(), whole.Choices[0].Text, "text")
	equal(len(last.Choices), 0, "choices of the usage chunk")
	equal(last.Usage.CompletionTokens, 6, "completion_tokens")
	return ""
}

func embeddings(ctx context.Context) string {
	if status, text := call(ctx, http.MethodPost, place.Gateway+"/embeddings", []byte(`{"model":"plain","input":"x"}`)); status == http.StatusNotFound && bytes.Contains(text, []byte("route_not_found")) {
		panic(skip("the gateway has no /v1/embeddings"))
	}
	p := openai.EmbeddingNewParams{Model: "plain", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"a switch", "a car", "a switch"}}}
	a := must(client().Embeddings.New(ctx, p))
	equal(len(a.Data), 3, "vectors")
	equal(a.Data[2].Index, 2, "index")
	check(slices.Equal(a.Data[0].Embedding, a.Data[2].Embedding) && !slices.Equal(a.Data[0].Embedding, a.Data[1].Embedding), "vectors do not follow the texts")
	check(a.Usage.PromptTokens > 0, "no usage")
	p.Model = "nobody"
	_, err := client().Embeddings.New(ctx, p)
	equal(fault(err).StatusCode, http.StatusNotFound, "status")
	return ""
}

func tools(ctx context.Context) string {
	want := playing(ctx, "tools")
	c := must(client().Chat.Completions.New(ctx, ask("plain", question))).Choices[0].Message.ToolCalls[0]
	equal([]string{c.ID, c.Function.Name, c.Function.Arguments}, []string{want.ID, want.Name, want.Arguments}, "call")
	chunks := must(stream(ctx, client(), ask("plain", question)))
	var assembled openai.ChatCompletionAccumulator // the client's own
	for _, k := range chunks {
		check(assembled.AddChunk(k), "the client cannot add %s", k.RawJSON())
	}
	got := assembled.Choices[0].Message.ToolCalls[0]
	equal([]string{got.ID, got.Function.Name, got.Function.Arguments}, []string{want.ID, want.Name, want.Arguments}, "assembled call")
	equal(assembled.Choices[0].FinishReason, want.Finish, "finish_reason")
	return ""
}

func logprobs(ctx context.Context) string {
	want := playing(ctx, "logprobs")
	p := ask("plain", question)
	p.Logprobs, p.TopLogprobs = openai.Bool(true), openai.Int(2)
	whole := must(client().Chat.Completions.New(ctx, p)).Choices[0].Logprobs.Content[0]
	first := must(stream(ctx, client(), p))[0].Choices[0].Logprobs.Content[0]
	for _, got := range []openai.ChatCompletionTokenLogprob{whole, first} {
		equal([]any{got.Token, got.Logprob, got.Bytes}, []any{want.Token, want.Logprob, want.Bytes}, "token")
		equal([]any{got.TopLogprobs[1].Token, got.TopLogprobs[1].Logprob}, []any{want.Other, want.OtherLogprob}, "other")
	}
	return ""
}

func requestFields(ctx context.Context) string {
	want := playing(ctx, "request_fields")
	var written [][]byte
	spy := client(option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		body := must(io.ReadAll(r.Body))
		written = append(written, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return next(r)
	}))
	extra := []option.RequestOption{option.WithJSONSet("huge", json.RawMessage("1208925819614629174706176")), option.WithJSONSet("tiny", json.RawMessage("1.50e-300"))}
	for name, value := range want.Extra {
		extra = append(extra, option.WithJSONSet(name, value))
	}
	must(spy.Chat.Completions.New(ctx, ask("plain", question), extra...))
	must(stream(ctx, spy, withUsage(ask("plain", question)), extra...))
	seen := records(ctx, "plain")
	equal(len(seen), len(written), "requests at the engine")
	for i := range seen {
		check(bytes.Equal(seen[i].Body, written[i]), "body at the engine: got %s, want %s", seen[i].Body, written[i])
	}
	must(stream(ctx, spy, ask("plain", question), extra...))
	got, sent := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	check(json.Unmarshal(records(ctx, "plain")[2].Body, &got) == nil && json.Unmarshal(written[2], &sent) == nil, "no JSON")
	equal(string(got["stream_options"]), `{"include_usage":true}`, "stream_options")
	delete(got, "stream_options")
	equal(got, sent, "body at the engine")
	var commands []option.RequestOption
	for name, value := range want.Commands {
		commands = append(commands, option.WithJSONSet(name, value))
	}
	must(spy.Chat.Completions.New(ctx, ask("plain", question), commands...))
	body := records(ctx, "plain")[3].Body
	for name := range want.Commands {
		check(!bytes.Contains(body, []byte(name)), "%s reached the engine", name)
	}
	return ""
}

func answerFields(ctx context.Context) string {
	want := playing(ctx, "answer_fields")
	a := must(client().Chat.Completions.New(ctx, ask("plain", question)))
	equal(a.Choices[0].Message.JSON.ExtraFields["reasoning_content"].Raw(), string(encode(want.Reasoning)), "reasoning_content")
	equal(a.Choices[0].JSON.ExtraFields["stop_reason"].Raw(), strconv.Itoa(want.StopReason), "stop_reason")
	equal(a.JSON.ExtraFields["big"].Raw(), want.Big, "big")
	chunks := must(stream(ctx, client(), ask("plain", question)))
	equal(chunks[0].Choices[0].Delta.JSON.ExtraFields["reasoning_content"].Raw(), string(encode(want.Reasoning)), "reasoning_content")
	equal(chunks[1].JSON.ExtraFields["big"].Raw(), want.Big, "big")
	return ""
}

func unicode(ctx context.Context) string {
	want := playing(ctx, "unicode").Text
	for _, content := range []string{"bytewise", "carriage", "plain"} {
		p := ask("plain", content)
		p.MaxTokens = openai.Int(200)
		equal(must(client().Chat.Completions.New(ctx, p)).Choices[0].Message.Content, want, content+" whole")
		equal(textOf(must(stream(ctx, client(), p)), 0), want, content+" stream")
	}
	return ""
}

// refusal sends a row's request and returns the error it must get.
func refusal(ctx context.Context, r *row, streamed bool) *openai.Error {
	c, model, content := client(), "plain", question
	if r.Request.Strict {
		c = strict()
	}
	if r.Request.Model != "" {
		model = r.Request.Model
	}
	if r.Request.Pad > 0 {
		content = strings.Repeat("x", r.Request.Pad)
	}
	var opts []option.RequestOption
	for name, value := range r.Request.Body {
		opts = append(opts, option.WithJSONSet(name, value))
	}
	if streamed {
		_, err := stream(ctx, c, ask(model, content), opts...)
		return fault(err)
	}
	_, err := c.Chat.Completions.New(ctx, ask(model, content), opts...)
	return fault(err)
}

func faults(ctx context.Context) string {
	table := place.Plays["errors"].Expect.Table
	for i := range table {
		for _, streamed := range []bool{false, true} {
			r := &table[i]
			what := r.Name
			if streamed {
				what += ", streamed"
			}
			script(ctx, r.Script, "plain")
			e := refusal(ctx, r, streamed)
			equal(e.StatusCode, r.Status, what)
			check(e.Message != "" && e.Type != "", "%s: no message or type in %s", what, e.RawJSON())
			check(e.JSON.Param.Raw() != "", "%s: no param in %s", what, e.RawJSON())
			code := e.JSON.Code.Raw()
			check(code == "null" || strings.HasPrefix(code, `"`), "%s: code is %q", what, code)
			if streamed && r.NoStream {
				continue
			}
			check(strings.Contains(e.Message, r.Message), "%s: the message is %s", what, e.Message)
			if r.Code != "" {
				equal(e.Code, r.Code, what+": code")
			}
			if r.Param != "" {
				equal(e.Param, r.Param, what+": param")
			}
			if r.RetryAfter != "" {
				equal(e.Response.Header.Get("Retry-After"), r.RetryAfter, what+": retry-after")
			}
			check(e.Response.Header.Get("X-Request-Id") != "", "%s: no request id", what)
			seen := 1
			if r.Unseen {
				seen = 0
			}
			equal(len(records(ctx, "plain")), seen, what+": requests at the engine")
		}
	}
	return fmt.Sprintf("%d faults", len(table))
}

func retryAfter(ctx context.Context) string {
	playing(ctx, "retry_after")
	began := time.Now()
	must(client(option.WithMaxRetries(2)).Chat.Completions.New(ctx, ask("plain", question)))
	took := time.Since(began)
	equal(len(records(ctx, "plain")), 2, "requests at the engine")
	check(took >= time.Second && took < 3*time.Second, "came back after %v instead of 1 s", took)
	return ""
}

func retryForbidden(ctx context.Context) string {
	playing(ctx, "retry_forbidden")
	_, err := strict(option.WithMaxRetries(2)).Chat.Completions.New(ctx, ask("plain", question))
	e := fault(err)
	equal(e.StatusCode, http.StatusGatewayTimeout, "status")
	equal(e.Response.Header.Get("X-Should-Retry"), "false", "x-should-retry")
	equal(len(records(ctx, "plain")), 1, "requests at the engine")
	return ""
}

func retryMultiplies(ctx context.Context) string {
	var counts []string
	for _, r := range place.Plays["retry_multiplies"].Expect.Table {
		script(ctx, r.Script, r.Model)
		_, err := client(option.WithMaxRetries(2)).Chat.Completions.New(ctx, ask(r.Model, question))
		_ = fault(err)
		n := len(records(ctx, r.Model))
		check(r.Least <= n && n <= r.Most, "%s: %d requests at the engines", r.Name, n)
		counts = append(counts, fmt.Sprintf("%s: %d", r.Name, n))
	}
	return strings.Join(counts, "; ")
}

func streamError(ctx context.Context) string {
	want := playing(ctx, "stream_error")
	for _, content := range []string{"without", "with-done"} {
		chunks, err := stream(ctx, client(), ask("plain", content))
		check(err != nil && strings.Contains(err.Error(), want.Message), "the error is %v", err)
		got := 0
		for _, k := range chunks {
			if k.Choices[0].Delta.Content != "" {
				got++
			}
		}
		equal(got, want.Events, "tokens before the error")
	}
	return ""
}

// offsets are all offsets, or when short some, those in keep among them.
func offsets(end int, keep ...int) []int {
	var all []int
	for i := range end {
		if !place.Short || i%37 == 0 || slices.Contains(keep, i) {
			all = append(all, i)
		}
	}
	return all
}

// cutAt plays one cut stream: it fails, or it is whole; never a part without an
// error.
func cutAt(ctx context.Context, c *openai.Client, p *play, name string, at int, mustFail, mustPass bool) {
	script(ctx, p.Script, "plain")
	chunks, err := stream(ctx, c, ask("plain", "cut me"))
	where := fmt.Sprintf("%s at byte %d", name, at)
	// A kept connection that is closed without a byte in answer is what a server's
	// idle timeout looks like: the gateway tries once more on a fresh one.
	n := len(records(ctx, "plain"))
	check(n == 1 || n == 2 && at == 0, "%s: %d requests at the engine", where, n)
	text := textOf(chunks, 0)
	check(strings.HasPrefix(p.Expect.Text, text), "%s: text %q", where, text)
	check(!mustFail || err != nil, "%s ended cleanly", where)
	check(!mustPass || err == nil, "%s: %v though the stream was whole", where, err)
	if err == nil {
		equal(text, p.Expect.Text, where+": text")
	} else if e, ok := errors.AsType[*openai.Error](err); ok {
		equal(e.StatusCode, http.StatusBadGateway, where+": status")
	}
}

func streamCut(ctx context.Context) string {
	p, c := place.Plays["stream_cut"], client()
	tried := 0
	for _, how := range []string{"reset", "close"} {
		for _, at := range offsets(p.Wire.Bytes, p.Wire.Error-1, p.Wire.Whole) {
			p.do()["cut"] = map[string]any{"at": at, "how": how}
			cutAt(ctx, c, p, how, at, at < p.Wire.Error, at >= p.Wire.Whole)
			tried++
		}
		must(c.Chat.Completions.New(ctx, ask("plain", question)))
	}
	return fmt.Sprintf("%d cuts", tried)
}

func streamEndsEarly(ctx context.Context) string {
	p, c := place.Plays["stream_ends_early"], client()
	body := p.do()["respond"].(map[string]any)["text"].(string)
	marker := strings.Index(body, "data: [DONE]") + len("data: [DONE]")
	all := offsets(len(body), marker-1, marker)
	for _, at := range all {
		p.do()["cut"].(map[string]any)["at"] = at
		cutAt(ctx, c, p, "end", at, at < marker, false)
	}
	return fmt.Sprintf("%d ends", len(all))
}

func heartbeat(ctx context.Context) string {
	want := playing(ctx, "heartbeat")
	got := 0
	for _, k := range must(stream(ctx, strict(), ask("plain", question))) {
		if k.Choices[0].Delta.Content != "" {
			got++
		}
	}
	equal(got, want.Tokens, "tokens")
	return ""
}

// leave starts a call, waits until ready, and cancels it 200 ms later. tokens
// counts what a stream has delivered.
func leave(ctx context.Context, p openai.ChatCompletionNewParams, streamed bool, ready func(tokens int) bool) time.Time {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var tokens atomic.Int64
	ended := make(chan error, 1)
	p.MaxTokens = openai.Int(50)
	c := client()
	go func() {
		if !streamed {
			_, err := c.Chat.Completions.New(ctx, p)
			ended <- err
			return
		}
		s := c.Chat.Completions.NewStreaming(ctx, p)
		defer s.Close() //nolint:errcheck // what matters is its Err
		for s.Next() {
			if s.Current().Choices[0].Delta.Content != "" {
				tokens.Add(1)
			}
		}
		ended <- s.Err()
	}()
	until(ctx, "the request to get where it is to be left", func() bool { return ready(int(tokens.Load())) })
	select {
	case err := <-ended:
		check(false, "the call ended before it was left: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	left := time.Now()
	cancel()
	err := <-ended
	check(errors.Is(err, context.Canceled), "the cancelled call's error is %v", err)
	return left
}

func seen(ctx context.Context) func(int) bool {
	return func(int) bool { return len(records(ctx, "plain")) > 0 }
}

func cancelBeforeHeaders(ctx context.Context) string {
	playing(ctx, "cancel_before_headers")
	return aborts(ctx, func() time.Time { return leave(ctx, ask("plain", question), true, seen(ctx)) }, "plain", "", "delay")
}

func cancelQueued(ctx context.Context) string {
	playingOn(ctx, "cancel_queued", "narrow")
	return aborts(ctx, func() time.Time {
		first, cancel := context.WithCancel(ctx)
		var held sync.WaitGroup
		c := client()
		held.Go(func() {
			p := ask("narrow", "first in line")
			p.MaxTokens = openai.Int(50)
			_, _ = c.Chat.Completions.New(first, p) // it ends with the cancellation
		})
		defer func() { cancel(); held.Wait() }()
		until(ctx, "the first to run", func() bool { return states(ctx, "narrow")[0].Load.Running == 1 })
		left := leave(ctx, ask("narrow", "second"), false, func(int) bool { return states(ctx, "narrow")[0].Load.Waiting == 1 })
		until(ctx, "the abort", func() bool {
			return slices.ContainsFunc(records(ctx, "narrow"), func(r record) bool { return r.Outcome == "aborted" })
		})
		return left
	}, "narrow", "second", "queued")
}

func cancelBeforeToken(ctx context.Context) string {
	playing(ctx, "cancel_before_token")
	return aborts(ctx, func() time.Time { return leave(ctx, ask("plain", question), true, seen(ctx)) }, "plain", "", "hang")
}

func cancelBetweenTokens(ctx context.Context) string {
	playing(ctx, "cancel_between_tokens")
	return aborts(ctx, func() time.Time {
		return leave(ctx, ask("plain", question), true, func(tokens int) bool { return tokens >= 1 })
	}, "plain", "", "decode")
}

func cancelWhole(ctx context.Context) string {
	playing(ctx, "cancel_whole")
	return aborts(ctx, func() time.Time { return leave(ctx, ask("plain", question), false, seen(ctx)) }, "plain", "", "prefill", "decode")
}

func cancelBreak(ctx context.Context) string {
	playing(ctx, "cancel_between_tokens")
	return aborts(ctx, func() time.Time {
		p := ask("plain", question)
		p.MaxTokens = openai.Int(50)
		c := client()
		s := c.Chat.Completions.NewStreaming(ctx, p)
		for s.Next() && s.Current().Choices[0].Delta.Content == "" {
			continue
		}
		check(s.Err() == nil, "%v", s.Err())
		left := time.Now()
		_ = s.Close() // leaving is what it is for
		return left
	}, "plain", "", "prefill", "decode")
}

func timeout(ctx context.Context) string {
	playing(ctx, "timeout")
	return aborts(ctx, func() time.Time {
		began := time.Now()
		_, err := client(option.WithRequestTimeout(500*time.Millisecond)).Chat.Completions.New(ctx, ask("plain", question))
		check(errors.Is(err, context.DeadlineExceeded), "the error is %v", err)
		return began.Add(500 * time.Millisecond)
	}, "plain", "", "delay")
}

func keepAlive(ctx context.Context) string {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := client(option.WithHTTPClient(&http.Client{Transport: transport}))
	made := 0
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if !i.Reused {
			made++
		}
	}})
	for range 5 {
		must(c.Chat.Completions.New(ctx, ask("plain", question)))
		must(stream(ctx, c, ask("plain", question)))
		_, err := c.Chat.Completions.New(ctx, ask("nobody", question))
		_ = fault(err)
		must(c.Models.List(ctx))
	}
	// This client closes a stream at its end marker. Whether it keeps the
	// connection depends on whether the response's end has come by then.
	check(made <= 1+5, "%d connections for 20 calls", made)
	return fmt.Sprintf("%d connections for 20 calls, 5 of them streams", made)
}

func concurrent(ctx context.Context) string {
	const calls = 64
	c := client()
	texts, failures := make([]string, calls), make([]string, calls)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			_, failures[i] = runCase(ctx, func(ctx context.Context) string {
				p := ask("twin", fmt.Sprint("car ", i))
				texts[i] = must(c.Chat.Completions.New(ctx, p)).Choices[0].Message.Content
				equal(textOf(must(stream(ctx, c, p)), 0), texts[i], "text")
				return ""
			})
		})
	}
	all.Wait()
	equal(strings.Join(failures, ""), "", "failures")
	slices.Sort(texts)
	equal(len(slices.Compact(texts)), calls, "different answers")
	return ""
}
