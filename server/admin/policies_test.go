package admin

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// fakePolicies is a cluster of one node that accepts whatever does not begin "bad".
type fakePolicies struct {
	table     *rollout.Table
	elsewhere *rollout.Table // what another node has applied and this one has not, until it catches up
	index     uint64
	err       error
}

func (f *fakePolicies) Table() *rollout.Table { return f.table }

// Catch lets the versions be seen that came to another node.
func (f *fakePolicies) Catch(context.Context) error {
	if f.elsewhere != nil {
		f.table, f.elsewhere = f.elsewhere, nil
	}
	return f.err
}

func (f *fakePolicies) Here() PoliciesHere { return PoliciesHere{Node: "p1", Index: f.table.Index()} }

func (f *fakePolicies) next(t *rollout.Table, err error) error {
	if f.err != nil {
		return f.err
	}
	if err == nil {
		f.table = t
	}
	return err
}

func (f *fakePolicies) Push(_ context.Context, module, signature []byte) (rollout.Version, stdjson.RawMessage, error) {
	if bytes.HasPrefix(module, []byte("bad")) {
		return rollout.Version{}, stdjson.RawMessage(`{"accepted":false}`), fmt.Errorf("%w: it loops", ErrUnfit)
	}
	f.index++
	name, release, _ := strings.Cut(string(module), "@")
	v := rollout.Version{
		Policy: name, Release: release, Kind: rollout.Router, Digest: rollout.DigestOf(module), Size: int64(len(module)),
		Signer: string(signature), Report: `{"accepted":true}`, Created: 1,
	}
	if err := f.next(f.table.Put(v, f.index)); err != nil {
		return v, nil, err
	}
	v, _ = f.table.Version(v.Digest)
	return v, stdjson.RawMessage(v.Report), nil
}

func (f *fakePolicies) Module(_ context.Context, d rollout.Digest) ([]byte, error) {
	v, _ := f.table.Version(d)
	return []byte(v.Ref()), f.err
}

func (f *fakePolicies) Manifest(context.Context, rollout.Digest) (stdjson.RawMessage, error) {
	return stdjson.RawMessage(`{"abi":"1.0"}`), f.err
}

func (f *fakePolicies) Delete(_ context.Context, d rollout.Digest) error {
	f.index++
	return f.next(f.table.Delete(d, f.index))
}

func (f *fakePolicies) Change(_ context.Context, c rollout.Change) error {
	f.index++
	return f.next(f.table.Change(c, f.index))
}

// policy sends one request and returns status and body.
func policy(t *testing.T, f *fakePolicies, method, path, body string) (code int, text string) {
	t.Helper()
	var parts Parts
	if f != nil {
		parts.Policies = f
	}
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	r.Header.Set(Intent, "1")
	w := httptest.NewRecorder()
	Handler(parts).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// The life of two versions, as the API tells it.
func TestPolicies(t *testing.T) {
	f := &fakePolicies{table: &rollout.Table{}}
	steps := []struct {
		method, path, body string
		code               int
		has                string // in the answer
	}{
		{"GET", "/admin/policies", "", 200, `"versions":[],"bindings":[],"here":{"node":"p1"`},
		{"POST", "/admin/policies", "spread@1.0", 201, `"policy":"spread","version":"1.0","kind":"router"`},
		{"POST", "/admin/policies", "spread@1.1", 201, `"report":{"accepted":true}`},
		{"POST", "/admin/policies", "bad", 422, `"code":"unfit"`},
		{"POST", "/admin/policies", "bad", 422, `"report":{"accepted":false}`},
		{"GET", "/admin/policies/spread@1.0", "", 200, `"manifest":{"abi":"1.0"}`},
		{"GET", "/admin/policies/spread", "", 200, `"version":"1.1"`},
		{"GET", "/admin/policies/spread/module", "", 200, "spread@1.1"},
		{"GET", "/admin/policies/other", "", 404, `"code":"not_found"`},
		{"POST", "/admin/bindings", `{"verb":"rollback"}`, 409, `"code":"nothing"`},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"spread@1.0"}]}`, 200, `"active":[{"policy":"spread@1.0"`},
		{"POST", "/admin/bindings", `{"verb":"canary","share":0.05,"parts":[{"policy":"spread","params":{"a":2}}]}`, 200, `"canary_share":0.05`},
		{"GET", "/admin/policies/spread", "", 200, `"bound":["canary"]`},
		{"DELETE", "/admin/policies/spread@1.1", "", 409, `"code":"bound"`},
		{"POST", "/admin/bindings", `{"verb":"promote"}`, 200, `"params":{"a":2}`},
		{"POST", "/admin/bindings", `{"verb":"pin"}`, 200, `"pinned":true`},
		{"POST", "/admin/bindings", `{"verb":"rollback"}`, 409, `"code":"pinned"`},
		{"POST", "/admin/bindings", `{"verb":"unpin","if_index":1}`, 409, `"code":"conflict"`},
		{"POST", "/admin/bindings", `{"verb":"unpin"}`, 200, `"active"`},
		{"POST", "/admin/bindings", `{"verb":"rollback"}`, 200, `"active":[{"policy":"spread@1.0"`},
		{"POST", "/admin/bindings", `{"verb":"promote","model":"m","parts":[{"policy":"sticky","weight":3},{"policy":"native:least-request"}]}`, 200, `"weight":3`},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"vtc"}]}`, 200, `"kind":"admission"`},
		{"POST", "/admin/bindings", `{"verb":"promote","kind":"router","parts":[{"policy":"vtc"}]}`, 404, "not_found"},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"vtc"},{"policy":"sticky"}]}`, 404, "not_found"},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"native:spread"}]}`, 404, "not_found"},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"sticky","params":{"a":2}}]}`, 400, "sticky has no parameter \\\"a\\\"; it has hold, "},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"native:sticky","params":{"hold":-1}}]}`, 400, "hold of sticky is from"},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"round-robin","params":{"a":2}}]}`, 400, "round-robin takes no parameters"},
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"sticky","params":{"hold":40}}]}`, 200, `"params":{"hold":40}`},
		{"GET", "/admin/policies/sticky", "", 404, "its parameters are hold (80), crowd (5)"},
		{"POST", "/admin/bindings", `{"verb":"hope"}`, 400, "invalid"},
		{"POST", "/admin/bindings", `{"verb":"promote","extra":1}`, 400, "invalid"},
		{"POST", "/admin/bindings", `{"verb":"clear","model":"m"}`, 200, `"active":[]`},
		{"DELETE", "/admin/policies/spread@1.1", "", 200, `"versions":[{"policy":"spread","version":"1.0"`},
	}
	for _, s := range steps {
		code, text := policy(t, f, s.method, s.path, s.body)
		if code != s.code || !strings.Contains(text, s.has) {
			t.Errorf("%s %s %s: %d %s\nwant %d and %s", s.method, s.path, s.body, code, text, s.code, s.has)
		}
	}
}

// What was pushed to another node a moment ago can be shown, bound and deleted by this
// one.
func TestPoliciesOfAnotherNode(t *testing.T) {
	ahead := &fakePolicies{table: &rollout.Table{}}
	policy(t, ahead, "POST", "/admin/policies", "spread@1.0")
	for _, ask := range []struct{ method, path, body string }{
		{"GET", "/admin/policies/spread", ""},
		{"POST", "/admin/bindings", `{"verb":"shadow","parts":[{"policy":"spread"}]}`},
		{"DELETE", "/admin/policies/spread", ""},
	} {
		f := &fakePolicies{table: &rollout.Table{}, elsewhere: ahead.table, index: ahead.index}
		if code, text := policy(t, f, ask.method, ask.path, ask.body); code != http.StatusOK {
			t.Errorf("%s %s: %d %s", ask.method, ask.path, code, text)
		}
	}
}

func TestPoliciesAreRefusedWhole(t *testing.T) {
	f := &fakePolicies{table: &rollout.Table{}}
	if code, text := policy(t, f, "POST", "/admin/policies", strings.Repeat("x", rollout.MaxModule+1)); code != 413 || !strings.Contains(text, "4 MiB") {
		t.Errorf("%d %s", code, text)
	}
	if code, text := policy(t, nil, "GET", "/admin/policies", ""); code != 404 || !strings.Contains(text, "no_policies") {
		t.Errorf("%d %s", code, text)
	}
	f.err = fmt.Errorf("asked: %w", ErrNoLeader)
	if code, text := policy(t, f, "POST", "/admin/policies", "a@1"); code != 503 || !strings.Contains(text, "no_leader") {
		t.Errorf("%d %s", code, text)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/admin/policies", strings.NewReader("a@1"))
	w := httptest.NewRecorder()
	Handler(Parts{Policies: f}).ServeHTTP(w, r)
	f.err = fmt.Errorf("asked: %w", ErrBusy)
	busy := r.Clone(t.Context())
	busy.Header.Set(Intent, "1")
	busy.Body = io.NopCloser(strings.NewReader("a@1"))
	again := httptest.NewRecorder()
	Handler(Parts{Policies: f}).ServeHTTP(again, busy)
	if again.Code != 503 || again.Header().Get("Retry-After") != "5" || !strings.Contains(again.Body.String(), `"busy"`) {
		t.Errorf("busy: %d %v %s", again.Code, again.Header(), again.Body)
	}
	var fault Fault
	if err := json.Unmarshal(w.Body.Bytes(), &fault); err != nil || w.Code != 403 || fault.Error.Code != "no_intent" {
		t.Errorf("without intent: %d %s %v", w.Code, w.Body, err)
	}
}

// A verb without a policy and a kind is for the one binding that it fits, and never for
// one of two.
func TestTheKindIsFoundOrAskedFor(t *testing.T) {
	f := &fakePolicies{table: &rollout.Table{}}
	for _, s := range []struct {
		body string
		code int
		has  string
	}{
		{`{"verb":"pin"}`, 404, "nothing is bound for the router"},
		{`{"verb":"shadow","parts":[{"policy":"vtc"}]}`, 200, `"kind":"admission"`},
		{`{"verb":"canary","share":0.5}`, 200, `"kind":"admission"`},
		{`{"verb":"rollback"}`, 200, `"kind":"admission"`},
		{`{"verb":"rollback"}`, 409, "the admission of all models"},
		{`{"verb":"shadow","parts":[{"policy":"vtc"}]}`, 200, `"kind":"admission"`},
		{`{"verb":"shadow","parts":[{"policy":"sticky"}]}`, 200, `"kind":"router"`},
		{`{"verb":"promote"}`, 400, "promote may mean the admission or the router; say which: --kind admission or --kind router"},
		{`{"verb":"promote","kind":"admission"}`, 200, `"active":[{"policy":"vtc"`},
		{`{"verb":"promote"}`, 200, `"kind":"router"`},
		{`{"verb":"pin","kind":"router"}`, 200, `"pinned":true`},
		{`{"verb":"unpin"}`, 200, `"kind":"router"`},
		{`{"verb":"clear"}`, 400, "--kind admission or --kind router"},
		{`{"verb":"clear","model":"m"}`, 404, "nothing is bound for the router of model m"},
		{`{"verb":"promote","parts":[{"policy":"stickky"}]}`, 404, "did you mean sticky?"},
	} {
		if code, text := policy(t, f, "POST", "/admin/bindings", s.body); code != s.code || !strings.Contains(text, s.has) {
			t.Errorf("%s: %d %s\nwant %d and %s", s.body, code, text, s.code, s.has)
		}
	}
}

// What a name means that has no version in order, and one that is of the binary.
func TestNamesWithoutAVersion(t *testing.T) {
	f := &fakePolicies{table: &rollout.Table{}}
	policy(t, f, "POST", "/admin/policies", "boom@0.1.0")
	var err error
	if f.table, err = f.table.Quarantine(rollout.DigestOf([]byte("boom@0.1.0")), "trap", 9); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		method, path, body string
		code               int
		has                string
	}{
		{"POST", "/admin/bindings", `{"verb":"promote","parts":[{"policy":"boom"}]}`, 409, "boom@0.1.0 (trap): push a new version, or name it with @"},
		{"DELETE", "/admin/policies/boom", "", 409, "boom@0.1.0 (trap)"},
		{"GET", "/admin/policies/boom", "", 200, `"quarantined":"trap"`},
		{"GET", "/admin/policies/boom@0.1.0", "", 200, `"quarantined":"trap"`},
		{"DELETE", "/admin/policies/boom@0.1.0", "", 200, `"versions":[]`},
		{"GET", "/admin/policies/sticky", "", 404, "sticky is a policy of the binary, of kind router"},
		{"GET", "/admin/policies/bom", "", 404, "not_found"},
	} {
		if code, text := policy(t, f, s.method, s.path, s.body); code != s.code || !strings.Contains(text, s.has) {
			t.Errorf("%s %s %s: %d %s\nwant %d and %s", s.method, s.path, s.body, code, text, s.code, s.has)
		}
	}
}
