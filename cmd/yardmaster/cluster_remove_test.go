package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/yardmaster/yardmaster/server/admin"
)

// removals is a node's admin API that counts what is removed.
func removals(t *testing.T, s *admin.ClusterStatus) (address string, removed func() int) {
	t.Helper()
	n := 0
	answer := func(w http.ResponseWriter, status int, v any) {
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	peers := admin.Peers{}
	for _, m := range s.Members {
		peers.Peers = append(peers.Peers, admin.Peer{ID: m.ID, Voter: m.Voter})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/cluster/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s) })
	mux.HandleFunc("GET /admin/cluster/peers", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, peers) })
	mux.HandleFunc("DELETE /admin/cluster/peers/{id}", func(w http.ResponseWriter, r *http.Request) {
		for _, m := range s.Members {
			if m.ID == r.PathValue("id") {
				n++
				answer(w, http.StatusOK, peers)
				return
			}
		}
		var f admin.Fault
		f.Error.Code, f.Error.Message = "not_found", "no such member"
		answer(w, http.StatusNotFound, f)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL, func() int { return n }
}

// TestRemovingWhatIsNeeded asks before a planner goes that is well and without
// which fewer failures are survived, and suggests the name that was meant.
func TestRemovingWhatIsNeeded(t *testing.T) {
	planner := func(id string, healthy bool) admin.Member { return admin.Member{ID: id, Voter: true, Healthy: healthy} }
	three := []admin.Member{planner("p0", true), planner("p1", true), planner("p2", true)}
	sick := []admin.Member{planner("p0", true), planner("p1", true), planner("p2", false)}
	four := append([]admin.Member{planner("p3", true)}, three...)
	gateways := append([]admin.Member{{ID: "gateway-0-3fa9c1"}, {ID: "gateway-1-aaaaaa"}}, three...)
	for _, tt := range []struct {
		name      string
		members   []admin.Member
		tolerates int
		args      string
		code      int
		removed   int
		said      string
	}{
		{"needed", three, 1, "p2", exitUsage, 0, "survives the loss of 0 planners instead of 1: say --yes"},
		{"wanted", three, 1, "p2 --yes", exitOK, 1, ""},
		{"unwell", sick, 0, "p2", exitOK, 1, ""},
		{"one too many", four, 1, "p3", exitOK, 1, "warning: p3 is well"},
		{"a gateway", gateways, 1, "gateway-0-3fa9c1", exitOK, 1, ""},
		{"a gateway's short name", gateways, 1, "gateway-0", exitNotFound, 0, `did you mean "gateway-0-3fa9c1"?`},
		{"of several", gateways, 1, "gateway", exitNotFound, 0, "there are gateway-0-3fa9c1, gateway-1-aaaaaa"},
		{"nobody", gateways, 1, "x", exitNotFound, 0, "no such member"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address, removed := removals(t, &admin.ClusterStatus{ClusterID: "c", Leader: "p0", Tolerates: tt.tolerates, Members: tt.members})
			var out, err strings.Builder
			a := &app{in: strings.NewReader(""), out: &out, err: &err}
			args := append([]string{"cluster", "remove", "--admin", address}, strings.Fields(tt.args)...)
			if code := a.run(t.Context(), args); code != tt.code || removed() != tt.removed || !strings.Contains(err.String(), tt.said) || (tt.said == "") != (err.String() == "") {
				t.Errorf("code %d, %d removed, %q", code, removed(), err.String())
			}
		})
	}
}
