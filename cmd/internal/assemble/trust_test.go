package assemble

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/policies/abi/abitest"
	"github.com/yardmaster/yardmaster/policies/vet"
	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// keyFile makes a pair of keys and writes the public one.
func keyFile(t *testing.T, name string) (file string, private ed25519.PrivateKey) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := vet.FormatKeys(private)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), name+".pub")
	if err := os.WriteFile(file, public, 0o600); err != nil {
		t.Fatal(err)
	}
	return file, private
}

// joinedPolicies is the admin API's policies of a gateway that has joined planners.
func joinedPolicies(t *testing.T, planners []*Planner, token string, own config.Policy) policyOperator {
	t.Helper()
	node, err := enter(t.Context(), spoken(t), membership{
		ID:      "gateway-" + filepath.Base(t.TempDir()),
		Cluster: config.Cluster{Join: []string{planners[0].PeerAddr()}, TokenFile: token, RaftMultiplier: 1, PeerListen: "127.0.0.1:0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, "gateway", node.close) })
	g, err := govern(t.Context(), spoken(t), own, "", byPlanners, bound{view: node.store, live: node.store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.end)
	waitFor(t, "the gateway is ready", func() bool { return node.store().Ready() == nil })
	return g.operator(spoken(t), func() *raftstore.Store { return node.store() })
}

// pushed is the answer of a whole gateway, which takes unsigned modules by its own
// settings, to one that nobody signed.
func pushed(t *testing.T, planners []*Planner, token string, module []byte) (code int, body string) {
	t.Helper()
	c := clusterSettings(t)
	c.Cluster.Join, c.Cluster.TokenFile, c.Gateway.Admin = []string{planners[0].PeerAddr()}, token, freePorts(t, 1)[0]
	c.Policy.AllowUnsigned = true
	g, err := StartJoinedGateway(t.Context(), spoken(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeWithin(t, "gateway", g.Close) })
	waitFor(t, "the gateway has an answer", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.Gateway.Admin+"/admin/policies", bytes.NewReader(module))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(admin.Intent, "1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // read only
		text, err := io.ReadAll(resp.Body)
		code, body = resp.StatusCode, string(text)
		return err == nil && code != http.StatusServiceUnavailable
	})
	return code, body
}

// Whose uploads count is for the planners to say, whatever node is asked: a gateway's
// own settings neither let in what they do not trust, nor keep out what they do.
func TestThePlannersTrustCounts(t *testing.T) {
	file, k1 := keyFile(t, "k1")
	others, k2 := keyFile(t, "k2")
	planners, settings := startVoters(t, 3, func(c *config.Config) { c.Policy.TrustedKeys, c.Policy.AllowUnsigned = []string{file}, false })
	for _, p := range planners {
		waitFor(t, "the planner is ready", func() bool { return p.ready() == nil && p.store.FeatureLevel() == planner.MaxFeatureLevel })
	}
	token := settings[0].Cluster.TokenFile
	lax := joinedPolicies(t, planners, token, config.Policy{AllowUnsigned: true, TrustedKeys: []string{others}})
	module := abitest.Policy{Name: "blue"}.Build()
	for what, signature := range map[string][]byte{"unsigned": nil, "by another key": vet.Sign(k2, module), "of other bytes": vet.Sign(k1, []byte("others"))} {
		_, report, err := lax.Push(t.Context(), module, signature)
		if !errors.Is(err, admin.ErrUnfit) || !strings.Contains(err.Error(), "signature not accepted") || !strings.Contains(string(report), `"signature","verdict":"refused"`) {
			t.Errorf("%s at a gateway that takes it: %v, %s", what, err, report)
		}
	}
	if code, body := pushed(t, planners, token, module); code != http.StatusUnprocessableEntity || !strings.Contains(body, "at step signature") {
		t.Errorf("by the admin API of a gateway that takes it: %d %s", code, body)
	}
	if n := len(planners[0].store.State().Rollout().Versions()); n > 0 {
		t.Fatalf("%d versions", n)
	}
	v, report, err := lax.Push(t.Context(), module, vet.Sign(k1, module))
	if err != nil || v.Signer != "k1" || !strings.Contains(string(report), `"accepted":true`) {
		t.Errorf("signed by k1 at a gateway that trusts k2: %+v, %v, %s", v, err, report)
	}
	strict := joinedPolicies(t, planners, token, config.Policy{})
	module = abitest.Policy{Name: "green"}.Build()
	if v, _, err := strict.Push(t.Context(), module, vet.Sign(k1, module)); err != nil || v.Signer != "k1" {
		t.Errorf("signed by k1 at a gateway that trusts nobody: %+v, %v", v, err)
	}
}
