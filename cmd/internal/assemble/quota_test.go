package assemble

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/quota"
)

// A tenant's quota is the cluster's: two gateways together give away no more than it,
// but for the last request of each, and a tenant without one is not limited.
func TestGatewaysShareAQuota(t *testing.T) {
	planners, settings := startVoters(t, 1)
	waitFor(t, "the planner is ready", func() bool { return planners[0].ready() == nil })
	scriptedAt(t, "w0", planners[0].Addr())
	var urls []string
	for range 2 {
		c := clusterSettings(t)
		c.Cluster.Join, c.Cluster.TokenFile = []string{planners[0].PeerAddr()}, settings[0].Cluster.TokenFile
		if c.Cluster.TokenFile == "" {
			c.Cluster.TokenFile = filepath.Join(settings[0].Planner.DataDir, config.TokenName)
		}
		c.Gateway.TenantHeader = "x-tenant"
		g, err := StartJoinedGateway(t.Context(), spoken(t), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeWithin(t, "gateway", g.Close) })
		waitFor(t, "the gateway serves", func() bool { return completion(t, g.URL(), "m") == http.StatusOK })
		urls = append(urls, g.URL())
	}
	const limit = 300
	if res, err := planners[0].store.Propose(t.Context(), planner.SetQuota{Tenant: "acme", Limit: limit}); err != nil || res.Err() != nil {
		t.Fatal(err, res)
	}
	// A window that ends meanwhile gives the limit once more.
	spent, most, refused, began := 0, 0, 0, minute()
	for i := range 120 {
		status, tokens := askAs(t, urls[i%2], "acme")
		switch status {
		case http.StatusOK:
			spent, most = spent+tokens, max(most, tokens)
		case http.StatusTooManyRequests:
			refused++
		default:
			t.Fatalf("status %d", status)
		}
	}
	windows := minute() - began + 1
	if windows == 1 && (refused == 0 || spent < limit/2) || spent > windows*(limit+2*most) {
		t.Errorf("%d of %d tokens were spent in %d windows, %d at most by one request; %d were refused", spent, limit, windows, most, refused)
	}
	if status, _ := askAs(t, urls[0], "other"); status != http.StatusOK {
		t.Errorf("a tenant without a quota: %d", status)
	}
}

// minute is the present window of quotas.
func minute() int { return int(time.Now().Unix() / quota.WindowSeconds) }

// askAs sends a request of a tenant and returns the tokens it took.
func askAs(t *testing.T, url, tenant string) (status, tokens int) {
	t.Helper()
	body := strings.NewReader(`{"model":"m","prompt":"hello there, how are you today?","max_tokens":4}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Tenant", tenant)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, int(gjson.GetBytes(text, "usage.total_tokens").Int())
}
