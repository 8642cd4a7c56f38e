package assemble

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/unit"
)

// A tenant's quota is the cluster's: two gateways together give away no more than it,
// but for the last request of each, and a tenant without one is not limited.
func TestGatewaysShareAQuota(t *testing.T) {
	c := quotaCluster(t)
	const limit = 300
	c.set(t, limit)
	// A window that ends meanwhile gives the limit once more.
	spent, most, refused, began := 0, 0, 0, minute()
	for i := range 120 {
		status, tokens := askAs(t, c.urls[i%2], "acme", 4)
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
	if status, _ := askAs(t, c.urls[0], "other", 4); status != http.StatusOK {
		t.Errorf("a tenant without a quota: %d", status)
	}
}

// Many requests at once get no more of it either, whatever answers have taken before, and
// a quota that is raised is felt before the minute is over.
func TestParallelRequestsShareAQuota(t *testing.T) {
	c := quotaCluster(t)
	const limit, output = 2000, 500
	c.set(t, limit)
	began := minute()
	var wg sync.WaitGroup
	var spent, odd atomic.Int64
	for i := range 60 {
		wg.Go(func() {
			switch status, tokens := askAs(t, c.urls[i%2], "acme", output); status {
			case http.StatusOK:
				spent.Add(int64(tokens))
			case http.StatusTooManyRequests:
			default:
				odd.Add(1)
			}
		})
	}
	wg.Wait()
	windows := int64(minute() - began + 1)
	const most = output + 30 // and the prompt
	t.Logf("%d of %d tokens in %d windows, %d requests on credit", spent.Load(), limit, windows, c.credit())
	if got := spent.Load(); got > windows*(limit+2*most)+c.credit()*most || odd.Load() > 0 {
		t.Errorf("%d of %d tokens were spent in %d windows, with %d requests on credit; %d failed", got, limit, windows, c.credit(), odd.Load())
	}
	c.set(t, 100*limit)
	if status, _ := askAs(t, c.urls[0], "acme", output); status != http.StatusOK {
		t.Errorf("status %d after the quota was raised", status)
	}
}

// shop is a planner, a worker and two gateways that take tenants by a header.
type shop struct {
	planner      *Planner
	urls, admins []string
	processes    []Process // of the gateways
}

func quotaCluster(t *testing.T) *shop {
	t.Helper()
	planners, settings := startVoters(t, 1)
	waitFor(t, "the planner is ready", func() bool { return planners[0].ready() == nil })
	scriptedAt(t, "w0", planners[0].Addr())
	out := &shop{planner: planners[0]}
	for range 2 {
		c := clusterSettings(t)
		c.Cluster.Join, c.Cluster.TokenFile = []string{planners[0].PeerAddr()}, settings[0].Cluster.TokenFile
		if c.Cluster.TokenFile == "" {
			c.Cluster.TokenFile = filepath.Join(settings[0].Planner.DataDir, config.TokenName)
		}
		c.Gateway.TenantHeader, c.Gateway.Admin = "x-tenant", "127.0.0.1:0"
		process := spoken(t)
		g, err := StartJoinedGateway(t.Context(), process, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeWithin(t, "gateway", g.Close) })
		waitFor(t, "the gateway serves", func() bool { return completion(t, g.URL(), "m") == http.StatusOK })
		out.urls, out.admins = append(out.urls, g.URL()), append(out.admins, g.AdminURL())
		out.processes = append(out.processes, process)
	}
	return out
}

// set changes the tenant's quota, and returns when all gateways know.
func (s *shop) set(t *testing.T, limit unit.Tokens) {
	t.Helper()
	if res, err := s.planner.store.Propose(t.Context(), planner.SetQuota{Tenant: "acme", Limit: limit}); err != nil || res.Err() != nil {
		t.Fatal(err, res)
	}
	for _, url := range s.admins {
		waitFor(t, "the gateway knows the quota", func() bool {
			_, body := get(t, url+"/admin/quotas")
			return gjson.Get(body, "quotas.0.tokens_per_minute").Int() == int64(limit)
		})
	}
}

// credit is how many requests gateways let in because no grant came in time.
func (s *shop) credit() (n int64) {
	for _, p := range s.processes {
		n += int64(p.Registry.Counter(measure.Admissions, "credit", admit.CreditLedger, "quota").Value())
	}
	return n
}

// minute is the present window of quotas.
func minute() int { return int(time.Now().Unix() / quota.WindowSeconds) }

// askAs sends a request of a tenant and returns the tokens it took.
func askAs(t *testing.T, url, tenant string, most int) (status, tokens int) {
	t.Helper()
	body := strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":"hello there, how are you today?","max_tokens":%d}`, most))
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
