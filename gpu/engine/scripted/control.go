package scripted

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// maxScript bounds an uploaded script.
const maxScript = 4 << 20

// control serves the engine's own door: /scripted/kv for other engines, the
// rest for this machine only.
func (inc *incarnation) control(w http.ResponseWriter, r *http.Request) {
	if id, ok := strings.CutPrefix(r.URL.Path, "/scripted/kv/"); ok && r.Method == http.MethodGet {
		inc.serveKV(w, r, id)
		return
	}
	if !local(r) {
		http.Error(w, "/scripted answers on the loopback interface only", http.StatusForbidden)
		return
	}
	e := inc.e
	switch r.Method + " " + r.URL.Path {
	case "GET /scripted/record":
		after, _ := strconv.Atoi(r.URL.Query().Get("after")) // absent or wrong: from the first
		records, counters := e.record.snapshot(after)
		writeJSON(w, struct {
			Counters Counters `json:"counters"`
			Load     Load     `json:"load"`
			Records  []Record `json:"records"`
		}{counters, e.Load(), records})
	case "DELETE /scripted/record":
		e.ResetRecords()
		w.WriteHeader(http.StatusNoContent)
	case "POST /scripted/script":
		inc.uploadScript(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (inc *incarnation) uploadScript(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxScript))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	s, err := ParseScript("script", text)
	if err == nil {
		err = inc.e.SetScript(s)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.MarshalWrite(w, v) // the client may have left
}

// local reports whether r comes from this machine and from no web page: the
// peer and the name it used are loopback, and no browser names an origin.
func local(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !peer.Addr().Unmap().IsLoopback() || r.Header.Get("Origin") != "" {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}
