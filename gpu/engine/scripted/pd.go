package scripted

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/mix"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Defaults of KVScript.
const (
	defaultLease = 30 * time.Second
	defaultWait  = 30 * time.Second
	defaultPeer  = 2 * time.Second
	maxManifest  = 64 << 10
)

// manifest is what a prefill engine says about the KV it holds for a decode
// engine. The KV itself is imaginary: what moves is this.
type manifest struct {
	Engine  string        `json:"engine"` // incarnation id
	Worker  string        `json:"worker"`
	Epoch   uint64        `json:"epoch"`
	Digest  string        `json:"digest"` // of the prompt's token ids, 16 hex digits
	Tokens  unit.Tokens   `json:"tokens"`
	Cached  int           `json:"cached"`
	Prefill time.Duration `json:"-"`
	Nanos   int64         `json:"prefill_ns"`      // Prefill, on the wire
	Failed  string        `json:"failed,omitzero"` // why there is none
}

// digest names a prompt.
func digest(ids []uint32) string {
	d := xxhash.New()
	var buf [4]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint32(buf[:], id)
		_, _ = d.Write(buf[:])
	}
	return fmt.Sprintf("%016x", d.Sum64())
}

// maxHeld bounds the transfers that wait to be taken.
const maxHeld = 4096

// kvTable is the KV that prefill legs hold for decode legs.
type kvTable struct {
	mu      sync.Mutex
	entries map[string]*heldKV
}

// heldKV is one transfer, from the moment either side asks for it.
type heldKV struct {
	ready    chan struct{} // closed when manifest is set
	manifest *manifest
	taken    chan struct{} // closed when the decode side has it or nobody will
	once     sync.Once
}

func newKVTable() *kvTable { return &kvTable{entries: map[string]*heldKV{}} }

// at returns the entry for id, making it if there is room.
func (t *kvTable) at(id string) *heldKV {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.entries[id]
	if h == nil && len(t.entries) < maxHeld {
		h = &heldKV{ready: make(chan struct{}), taken: make(chan struct{})}
		t.entries[id] = h
	}
	return h
}

// offer sets what id's decode leg will be told, once. It returns nil when the
// table is full.
func (t *kvTable) offer(id string, m *manifest) (h *heldKV, first bool) {
	if h = t.at(id); h == nil {
		return nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if first = h.manifest == nil; first {
		h.manifest = m
		close(h.ready)
	}
	return h, first
}

// drop ends the transfer of id.
func (t *kvTable) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.entries[id]; h != nil {
		delete(t.entries, id)
		h.once.Do(func() { close(h.taken) })
	}
}

// kvLeg is the transfer side of one request: nothing, for an aggregated one.
type kvLeg struct {
	x        *exchange
	leg      engine.Leg
	id       string // transfer id; a request id in vLLM's handshake
	vllm     bool
	peer     engine.Peer
	external unit.Tokens
	found    unit.Tokens // of external, what a report calls cached
	outcome  string      // of a decode leg, for HeaderKV
	lied     int         // tokens claimed as cached beyond the truth
	started  time.Time
	free     func() // gives a prefill leg's blocks back; may be called again
	offered  bool   // a prefill leg's KV is in the table, or was there and is taken
}

// openKV reads which leg the request is. A prefill leg's end, whatever it is,
// will be known to its decode leg.
func (x *exchange) openKV() (*kvLeg, error) {
	k := &kvLeg{x: x, started: x.engine().opts.Clock.Now(), free: func() {}}
	switch {
	case x.r.Header.Get(engine.HeaderLeg) != "":
		if err := k.readHeaders(); err != nil {
			return nil, err
		}
	case x.facts.KV != nil:
		k.leg, k.vllm = x.facts.leg, true
		if k.leg == engine.Prefill {
			k.id = x.name("") + fmt.Sprintf("-%08x", uint32(mix.Bits(uint64(x.rec.Seq))))
		}
	}
	if k.leg == engine.Prefill {
		x.after = append(x.after, k.closePrefill)
	}
	return k, nil
}

// readHeaders reads the headers of Yardmaster's own handshake.
func (k *kvLeg) readHeaders() error {
	h := k.x.r.Header
	switch h.Get(engine.HeaderLeg) {
	case engine.Aggregated.String():
		return nil
	case engine.Prefill.String(), engine.Decode.String():
	default:
		return k.bad(engine.HeaderLeg, "the leg header names no leg")
	}
	k.leg, k.id = k.x.facts.leg, h.Get(engine.HeaderTransfer)
	if n, err := strconv.ParseUint(k.id, 16, 64); err != nil || n == 0 {
		return k.bad(engine.HeaderTransfer, "the transfer header is no transfer id")
	}
	var err error
	if k.peer, err = engine.ParsePeer(h.Get(engine.HeaderPeer)); err != nil {
		return k.bad(engine.HeaderPeer, "the peer header names no peer")
	}
	return nil
}

// bad refuses the call as a leg.
func (k *kvLeg) bad(param, message string) error {
	k.x.w.Header().Set(engine.HeaderReason, engine.ReasonBadLeg)
	return badRequest(param, "%s", message)
}

// begin does what comes before computing: a decode leg brings its KV. It fails
// when the request must.
func (k *kvLeg) begin(j *job) error {
	if k.leg != engine.Aggregated && len(j.prompts) > 1 {
		return k.bad("prompt", "a disaggregated request has one prompt")
	}
	switch {
	case k.leg == engine.Prefill:
		j.maxNew, j.byLimit, j.choices = 1, true, 1
		j.api.Stream = false
		return nil
	case k.leg == engine.Decode && k.vllm:
		return k.pullVLLM(j)
	case k.leg == engine.Decode:
		want := manifest{Epoch: uint64(k.peer.Epoch), Digest: digest(j.prompts[0].ids)}
		return k.pull(j, k.peer.Transfer, want)
	}
	return nil
}

// closePrefill ends a prefill leg that offered nothing.
func (k *kvLeg) closePrefill() {
	if act := k.x.act.KV; act != nil && act.Forget {
		k.free()
		return
	}
	if k.offered {
		return // once more, it would come back after it was taken
	}
	h, first := k.x.inc.kv.offer(k.id, &manifest{Failed: "prefill_aborted"})
	if h == nil {
		k.free()
	} else if first {
		k.expire(h)
	}
}

// expire drops the entry and frees its blocks when it is taken, its lease ends
// or the engine stops.
func (k *kvLeg) expire(h *heldKV) {
	inc, id, free := k.x.inc, k.id, k.free
	script := inc.e.play.Load().script.KV
	inc.tasks.Go(func() {
		t := inc.e.opts.Clock.NewTimer(orDefault(script.Lease.D(), defaultLease))
		defer t.Stop()
		select {
		case <-h.taken:
		case <-t.C():
		case <-inc.ctx.Done():
		}
		inc.kv.drop(id)
		free()
	})
}

// attach tells a sequence what came from elsewhere, or that its blocks are to be
// kept.
func (k *kvLeg) attach(r *rank, s *seq) {
	s.external, s.found, s.silent = k.external, k.found, k.script().Silent
	if k.leg == engine.Prefill {
		s.hold = true
		k.free = func() { r.unhold(s) }
	}
}

// extraCached is what a lying engine adds to its cached tokens.
func (k *kvLeg) extraCached() int { return k.lied }

// describe sets the response header of a decode leg.
func (k *kvLeg) describe(x *exchange) {
	if k.outcome == "" {
		return
	}
	x.engine().record.update(x.rec, func(r *Record) { r.KV = k.outcome })
	if !k.vllm {
		x.w.Header().Set(engine.HeaderKV, k.outcome)
	}
}

// reply offers a finished prefill's KV and returns kv_transfer_params.
func (k *kvLeg) reply(w *writer) (jsontext.Value, error) {
	if k.leg != engine.Prefill || k.id == "" {
		return nil, nil
	}
	x := k.x
	prompt := w.j.prompts[0].ids
	m := &manifest{
		Engine: x.inc.id, Worker: string(x.engine().opts.Worker), Epoch: uint64(x.engine().own.Epoch()),
		Digest: digest(prompt), Tokens: unit.Tokens(len(prompt)), Cached: w.cached(),
		Prefill: x.engine().opts.Clock.Now().Sub(k.started),
	}
	act := x.act.KV
	if act == nil || !act.Forget {
		h, first := x.inc.kv.offer(k.id, m)
		if k.offered = h != nil; first {
			k.expire(h)
		}
	}
	if !k.vllm {
		return nil, nil
	}
	return k.params(m, prompt)
}

// params is the map that vLLM's NIXL connector answers a prefill leg with.
func (k *kvLeg) params(m *manifest, prompt []uint32) (jsontext.Value, error) {
	act := k.x.act.KV
	if act != nil && act.Null {
		return jsontext.Value("null"), nil
	}
	host, port, err := net.SplitHostPort(k.x.inc.ln.Addr().String())
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	blocks := make([]int, unit.BlocksFor(unit.Tokens(len(prompt)), k.x.engine().opts.BlockTokens))
	for i := range blocks {
		blocks[i] = i + 1
	}
	params := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false,
		"remote_block_ids": [][]int{blocks}, "remote_engine_id": m.Engine, "remote_request_id": k.id,
		"remote_host": host, "remote_port": number, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
		"remote_num_tokens": len(prompt), "remote_blocks_expiry_time": nil, "transfer_mode": "pull",
		"remote_prefill_cached_tokens": m.Cached,
	}
	if act != nil {
		maps.Copy(params, act.Set)
		for _, key := range act.Delete {
			delete(params, key)
		}
	}
	return json.Marshal(params, json.Deterministic(true))
}

// vllmParams are the keys a decode leg needs.
type vllmParams struct {
	Engine  *string `json:"remote_engine_id"`
	Request *string `json:"remote_request_id"`
	Host    *string `json:"remote_host"`
	Port    *int    `json:"remote_port"`
}

// pullVLLM brings KV as vLLM's handshake says.
func (k *kvLeg) pullVLLM(j *job) error {
	var p vllmParams
	if json.Unmarshal(j.api.KV, &p) != nil || p.Engine == nil || p.Request == nil || p.Host == nil || p.Port == nil {
		return k.fault(j, k.script().Missing, "missing_keys")
	}
	k.id = *p.Request
	want := manifest{Engine: *p.Engine, Digest: digest(j.prompts[0].ids)}
	return k.pull(j, net.JoinHostPort(*p.Host, strconv.Itoa(*p.Port)), want)
}

func (k *kvLeg) script() KVScript { return k.x.engine().play.Load().script.KV }

// errDead means a peer that does not answer; errStale one that has not got what
// was asked for.
var (
	errDead  = errors.New("peer cannot be reached")
	errStale = errors.New("peer does not hold this KV")
)

// pull fetches the manifest from addr, checks it and takes the modelled time.
func (k *kvLeg) pull(j *job, addr string, want manifest) error {
	k.x.stage = "transfer"
	act := k.x.act.KV
	script := k.script()
	if act != nil && act.Stall {
		if !k.x.sleep(orDefault(script.Wait.D(), defaultWait)) {
			return k.x.ctx.Err()
		}
		return k.fault(j, script.Dead, "timeout")
	}
	if act != nil && act.Fail != "" {
		return k.fault(j, script.Stale, act.Fail)
	}
	m, err := k.fetch(addr)
	switch {
	case k.x.ctx.Err() != nil:
		return k.x.ctx.Err()
	case errors.Is(err, errDead):
		return k.fault(j, script.Dead, "peer_unreachable")
	case err != nil:
		return k.fault(j, script.Stale, "unknown_transfer")
	case m.Failed != "":
		return k.fault(j, script.Stale, m.Failed)
	case want.Epoch != 0 && m.Epoch != 0 && m.Epoch != want.Epoch,
		want.Engine != "" && m.Engine != want.Engine:
		return k.fault(j, script.Stale, "stale_epoch")
	case m.Digest != want.Digest:
		return k.fault(j, script.Stale, "wrong_prompt")
	}
	return k.land(m)
}

// land waits for the bytes and counts them in.
func (k *kvLeg) land(m *manifest) error {
	d := k.x.engine().opts.Link.Exposed(m.Tokens, m.Prefill)
	d = time.Duration(float64(d) / k.x.engine().opts.Speed)
	if act := k.x.act.KV; act != nil {
		d += act.Delay.D()
	}
	if !k.x.sleep(d) {
		return k.x.ctx.Err()
	}
	k.external, k.outcome = m.Tokens, "moved"
	// What was moved was not found in a cache, but that engine, which counts it so, is
	// imitated in this, too.
	if k.found = unit.Tokens(m.Cached); k.vllm {
		k.found = m.Tokens
	}
	k.x.stage = stageQueued.String()
	return nil
}

// fault reacts to a transfer that cannot be had.
func (k *kvLeg) fault(j *job, reaction Fault, reason string) error {
	if act := k.x.act.KV; act != nil && act.Fault != "" {
		reaction = act.Fault
	}
	k.x.stage = stageQueued.String()
	switch reaction {
	case Lie:
		j.poisoned = true
		k.lied = len(j.prompts[0].ids) + 1
		k.outcome = "moved"
		return nil
	case FailLeg:
		return &problem{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}
	case Die:
		k.x.engine().dieSoon(k.x.ctx, &DieAction{})
		return &problem{http.StatusInternalServerError, "InternalServerError", "EngineCore encountered an issue.", ""}
	case Recompute:
	}
	k.outcome = "recomputed; " + reason
	return nil
}

// fetch asks addr for the manifest of the transfer, waiting for the prefill to
// end.
func (k *kvLeg) fetch(addr string) (*manifest, error) {
	script := k.script()
	wait := orDefault(script.Wait.D(), defaultWait)
	ctx, cancel := context.WithTimeout(k.x.ctx, wait+orDefault(script.Peer.D(), defaultPeer))
	defer cancel()
	if k.vllm {
		wait = 0 // its prefill leg has ended before
	}
	target := url.URL{Scheme: "http", Host: addr, Path: "/scripted/kv/" + k.id, RawQuery: "wait=" + wait.String()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDead, err)
	}
	resp, err := k.x.inc.peers.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDead, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxManifest))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDead, err)
	}
	m := &manifest{}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, m) != nil {
		return nil, errStale
	}
	m.Prefill = time.Duration(m.Nanos)
	return m, nil
}

// serveKV is the prefill side: it hands the manifest over once the prefill has
// ended.
func (inc *incarnation) serveKV(w http.ResponseWriter, r *http.Request, id string) {
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil || len(id) > 256 {
		http.Error(w, "bad wait or id", http.StatusBadRequest)
		return
	}
	h := inc.kv.at(id)
	if h == nil {
		http.Error(w, "too many transfers", http.StatusServiceUnavailable)
		return
	}
	defer inc.kv.drop(id)
	if !isClosed(h.ready) {
		t := inc.e.opts.Clock.NewTimer(min(wait, time.Minute))
		defer t.Stop()
		select {
		case <-h.ready:
		case <-t.C():
			http.NotFound(w, r)
			return
		case <-r.Context().Done():
			return
		}
	}
	m := *h.manifest
	m.Nanos = int64(m.Prefill)
	writeJSON(w, &m)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
