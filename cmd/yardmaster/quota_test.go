package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What does not do what its words suggest says so.
func TestQuotaWarns(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"quotas":[{"tenant":"acme","tokens_per_minute":5}],"workers":[{"id":"w","models":["llama"]}]}`))
	}))
	defer node.Close()
	for line, want := range map[string]string{
		"quota drop acme":                          "",
		"quota drop nobody":                        "nobody had no quota",
		"quota set acme 0":                         "every request of acme is refused",
		"quota set acme 5":                         "",
		"policy promote sticky --model nosuch":     `no worker serves a model called "nosuch"`,
		"policy promote sticky --model llama":      "",
		"policy clear --kind router --model other": "",
	} {
		var warned bytes.Buffer
		root := (&app{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &warned}).root()
		root.SetArgs(append(strings.Fields(line), "--admin", node.URL))
		if err := root.ExecuteContext(t.Context()); err != nil || (warned.Len() > 0) != (want != "") || !strings.Contains(warned.String(), want) {
			t.Errorf("%s: %q, %v", line, warned.String(), err)
		}
	}
}
