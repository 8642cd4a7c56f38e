package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// place is what the driver says; see its fleet.go.
var place struct {
	Gateway string              `json:"gateway"`
	Strict  string              `json:"strict"`
	Engines map[string][]string `json:"engines"`
	Plays   map[string]*play    `json:"plays"`
	Run     string              `json:"run"`
	Short   bool                `json:"short"`
}

// play is a case of plays.yaml.
type play struct {
	Expect expect         `json:"expect"`
	Script map[string]any `json:"script"`
	Wire   struct{ Bytes, Error, Whole int }
}

// expect is the union of what the cases expect.
type expect struct {
	ID, Name, Arguments, Finish   string
	Token, Other, Text, Reasoning string
	Big, Message                  string
	Logprob                       float64
	OtherLogprob                  float64 `json:"other_logprob"`
	Bytes                         []int64
	StopReason                    int `json:"stop_reason"`
	Events, Tokens                int
	Extra, Commands               map[string]json.RawMessage
	Table                         []row
}

// row is a row of a table of faults.
type row struct {
	Name, Class, Code, Message, Param, Model string
	Script                                   map[string]any
	Status, Least, Most                      int
	RetryAfter                               string `json:"retry_after"`
	Unseen                                   bool
	NoStream                                 bool `json:"no_stream"`
	Request                                  struct {
		Strict bool
		Pad    int
		Model  string
		Body   map[string]any
	}
}

// failure ends a case.
type failure string

// skip says that the case does not apply here.
type skip string

func check(ok bool, format string, args ...any) {
	if ok {
		return
	}
	_, file, line, _ := runtime.Caller(1)
	for skipped := 2; !strings.HasSuffix(file, "main.go") && skipped < 8; skipped++ {
		_, file, line, _ = runtime.Caller(skipped)
	}
	panic(failure(fmt.Sprintf(format, args...) + fmt.Sprintf(" (main.go:%d)", line)))
}

func equal[T any](got, want T, what string) {
	a, b := encode(got), encode(want)
	check(bytes.Equal(a, b), "%s: got %s, want %s", what, a, b)
}

func must[T any](v T, err error) T {
	check(err == nil, "unexpected error: %v", err)
	return v
}

func encode(v any) []byte {
	text, err := json.Marshal(v)
	check(err == nil, "%v", err)
	return text
}

// runCase is the outcome of f, which panics to fail or skip.
func runCase(ctx context.Context, f func(context.Context) string) (status, detail string) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			status, detail = "fail", string(v)
		case skip:
			status, detail = "skip", string(v)
		default:
			panic(v)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return "pass", f(ctx)
}

func run(cases []testCase) error {
	text, err := os.ReadFile(os.Getenv("YARDMASTER_CLIENTS"))
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&place); err != nil {
		return err
	}
	pattern, err := regexp.Compile(place.Run)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for _, c := range cases {
		if !pattern.MatchString(c.name) {
			continue
		}
		began := time.Now()
		status, detail := runCase(context.Background(), func(ctx context.Context) string {
			for model := range place.Engines {
				script(ctx, nil, model)
			}
			return c.run(ctx)
		})
		err := out.Encode(map[string]any{"case": c.name, "status": status, "detail": detail, "ms": float64(time.Since(began).Microseconds()) / 1000})
		if err != nil {
			return err
		}
	}
	return nil
}

// call sends one plain request.
func call(ctx context.Context, method, url string, body []byte) (int, []byte) {
	req := must(http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body)))
	resp, err := http.DefaultClient.Do(req)
	check(err == nil, "%v", err)
	defer resp.Body.Close() //nolint:errcheck // read only
	return resp.StatusCode, must(io.ReadAll(resp.Body))
}

// script makes the model's engines play what; records begin anew.
func script(ctx context.Context, what map[string]any, model string) {
	if what == nil {
		what = map[string]any{}
	}
	for _, engine := range place.Engines[model] {
		status, text := call(ctx, http.MethodPost, engine+"/scripted/script", encode(what))
		check(status == http.StatusNoContent, "the engine refused the script: %s", text)
	}
	forget(ctx, model)
}

// old is the last record of each engine that does not count any more.
var old = map[string]int{}

// forget makes records begin anew. What the engines have on record stays: it may
// not have ended yet.
func forget(ctx context.Context, model string) {
	for i, s := range states(ctx, model) {
		if n := len(s.Records); n > 0 {
			old[place.Engines[model][i]] = s.Records[n-1].Seq
		}
	}
}

// playing plays a case of plays.yaml on the plain model's engine.
func playing(ctx context.Context, name string) expect { return playingOn(ctx, name, "plain") }

func playingOn(ctx context.Context, name, model string) expect {
	script(ctx, place.Plays[name].Script, model)
	return place.Plays[name].Expect
}

// do is the action of a play's first rule.
func (p *play) do() map[string]any {
	return p.Script["rules"].([]any)[0].(map[string]any)["do"].(map[string]any)
}

// record is what an engine saw of a request.
type record struct {
	Seq                          int
	Method, Path, Outcome, Stage string
	Body                         []byte
	Ended                        time.Time
}

type state struct {
	Load    struct{ Running, Waiting int }
	Records []record
}

// states are what the model's engines say of themselves since forget, one each.
func states(ctx context.Context, model string) []state {
	var all []state
	for _, engine := range place.Engines[model] {
		_, text := call(ctx, http.MethodGet, engine+"/scripted/record?after="+strconv.Itoa(old[engine]), nil)
		var s state
		check(json.Unmarshal(text, &s) == nil, "%s", text)
		all = append(all, s)
	}
	return all
}

// records are the generation requests the model's engines have seen.
func records(ctx context.Context, model string) []record {
	var all []record
	for _, s := range states(ctx, model) {
		for _, r := range s.Records {
			if r.Method == http.MethodPost && strings.HasPrefix(r.Path, "/v1/") {
				all = append(all, r)
			}
		}
	}
	return all
}

// until polls until ok.
func until(ctx context.Context, what string, ok func() bool) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("waited 5 s for "+what))
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			check(false, "%v", context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

const (
	abortBound = 100 * time.Millisecond
	tries      = 3 // a busy machine may hold up one of them, not a gateway that does not abort
)

// aborts checks that the engine sees the client leave within the bound: the
// request with word in its body, in one of the stages. leave starts a request,
// leaves it, and returns when it left.
func aborts(ctx context.Context, leave func() time.Time, model, word string, stages ...string) string {
	best := time.Hour
	for range tries {
		forget(ctx, model)
		left := leave()
		var r record
		until(ctx, "the engine to see the abort", func() bool {
			all := records(ctx, model)
			i := slices.IndexFunc(all, func(r record) bool { return r.Outcome == "aborted" && bytes.Contains(r.Body, []byte(word)) })
			if i >= 0 {
				r = all[i]
			}
			return i >= 0
		})
		check(slices.Contains(stages, r.Stage), "the request was in stage %s, not %v", r.Stage, stages)
		if best = min(best, r.Ended.Sub(left)); best <= abortBound {
			return fmt.Sprintf("seen after %d ms", max(best, 0).Milliseconds())
		}
	}
	check(false, "the engine saw the abort after %v at best", best)
	return ""
}
