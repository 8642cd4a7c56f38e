package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/server/admin"
)

// A change that the node does not follow yet is done in part, and says so.
func TestAChangeThatIsNotReadyHere(t *testing.T) {
	late := ""
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"kind":"router","active":[{"policy":"blue@1","weight":1}],"previous":[[]],"index":7,"configured":"sticky"` + late + `}`))
	}))
	defer node.Close()
	run := func() (string, error) {
		var out bytes.Buffer
		root := (&app{in: strings.NewReader(""), out: &out, err: &out}).root()
		root.SetArgs([]string{"policy", "promote", "--admin", node.URL})
		err := root.ExecuteContext(t.Context())
		return out.String(), err
	}
	if text, err := run(); err != nil || !strings.Contains(text, "sticky (configured)") {
		t.Errorf("%s %v", text, err)
	}
	late = `,"late":"blue@1 is being prepared"`
	if text, err := run(); exitCode(err) != exitPartial || !strings.Contains(err.Error(), "not ready here yet: blue@1 is being prepared") || !strings.Contains(text, "blue@1") {
		t.Errorf("%s %v", text, err)
	}
}

// A guard that stands still and fails closed is called that.
func TestAGuardThatRefusesAll(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"versions":[],"bindings":[{"kind":"admission","model":"m","active":[{"policy":"guard@1","weight":1}],"refuses":"guard@1"}],` +
			`"here":{"node":"p1","refusing":[{"kind":"admission","model":"m","policy":"guard@1"}]}}`))
	}))
	defer node.Close()
	var out, warnings bytes.Buffer
	root := (&app{in: strings.NewReader(""), out: &out, err: &warnings}).root()
	root.SetArgs([]string{"policy", "list", "--admin", node.URL})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "guard@1 (refuses all)") {
		t.Error(out.String())
	}
	if want := "p1 refuses every request for m: guard@1 fails closed"; !strings.Contains(warnings.String(), want) {
		t.Errorf("%s; want %s", warnings.String(), want)
	}
}

func TestWhatDecidesWhereNothingIsBound(t *testing.T) {
	for want, b := range map[string]admin.PolicyBinding{
		"sticky (configured)": {Kind: "router", Configured: "sticky"},
		"(as configured)":     {Kind: "router"},
		"(as for all models)": {Kind: "router", Model: "m", Configured: "sticky"},
		"-":                   {Kind: "observer"},
		"a@1":                 {Kind: "router", Configured: "sticky", Active: []admin.PolicyPart{{Policy: "a@1"}}},
	} {
		if got := decides(&b, b.Active); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Parameters in brackets go with the files of modules, too.
func TestParametersOfFiles(t *testing.T) {
	const file = "../../plugins-sdk/examples/least-loaded/c/policy.wasm"
	b, err := newPolicyBench(t.Context(), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.close(t.Context())
	for what, want := range map[string]string{
		file:                          "",
		file + "(token_seconds=0.01)": "",
		file + "(token_seconds=2":     "not closed",
		file + "(token_seconds=much)": "is not a parameter",
		file + "(no_such=2)":          `no parameter "no_such"`,
		file + "(token_seconds=-1)":   "token_seconds",
		"sticky(token_seconds=0.01)":  "sticky",
	} {
		if _, err := b.router(t.Context(), what); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
