package assemble

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/core/measure"
)

// leastLoaded is a policy in Wasm.
const leastLoaded = "../../../plugins-sdk/examples/least-loaded/c/policy.wasm"

// A gateway without planners decides by files of policies, which pass the checks of
// an upload or keep it from starting.
func TestAGatewayDecidesByFiles(t *testing.T) {
	worker := startAlone(t, "m")
	defer end(t, worker.Close)
	c := settings(t)
	c.Gateway.Engines, c.Gateway.Policy = []string{worker.Self().URL}, leastLoaded+"=2(token_seconds=0.01),sticky=1"
	p := quiet()
	g, err := StartStaticGateway(t.Context(), p, c)
	if err != nil {
		t.Fatal(err)
	}
	defer end(t, g.Close)
	if status := completion(t, g.URL(), "m"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	decisions := 0.0
	for _, f := range p.Registry.Snapshot() {
		for _, s := range f.Series {
			if f.Desc.Name == measure.PolicyDecisions.Name && strings.HasPrefix(s.Labels[1], "least-loaded@") && strings.HasSuffix(s.Labels[1], "=2,sticky=1") {
				decisions += s.Value
			}
		}
	}
	if decisions != 1 {
		t.Errorf("%v decisions by the file", decisions)
	}
}

func TestAGatewayRefusesBadFiles(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	broken := filepath.Join(t.TempDir(), "broken.wasm")
	if err := os.WriteFile(broken, []byte("no module"), 0o600); err != nil {
		t.Fatal(err)
	}
	for policy, want := range map[string]string{
		broken:                         "broken.wasm: policy refused",
		leastLoaded + "(no_such=1)":    "no_such",
		leastLoaded + "(token_seconds": "not closed",
		"missing.wasm":                 "missing.wasm: no such file",
		"../../../plugins-sdk/examples/tenant-admission/c/policy.wasm": "is of kind admission and cannot route",
	} {
		c := settings(t)
		c.Gateway.Engines, c.Gateway.Policy = []string{"http://127.0.0.1:1"}, policy
		if _, err := StartStaticGateway(t.Context(), quiet(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", policy, err)
		}
	}
	c := settings(t)
	c.Gateway.Policy = leastLoaded
	if _, err := routing(c.Gateway); !errors.Is(err, errPushed) {
		t.Errorf("with planners: %v", err)
	}
}
