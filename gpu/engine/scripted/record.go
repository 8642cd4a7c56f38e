package scripted

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

// Outcome is how an exchange ended.
type Outcome string

// The outcomes.
const (
	Pending Outcome = ""        // it has not ended
	Served  Outcome = "served"  // a whole response was written, of whatever status
	Aborted Outcome = "aborted" // the client left first
	Broken  Outcome = "cut"     // the script broke the response
	Stopped Outcome = "stopped" // the engine stopped or died first
)

// Record is what the engine saw of one request.
type Record struct {
	Seq         int         `json:"seq"` // counts from 1, over restarts
	Incarnation int         `json:"incarnation"`
	Time        time.Time   `json:"time"`
	Remote      string      `json:"remote"`
	Method      string      `json:"method"`
	Path        string      `json:"path"` // with the query
	Header      http.Header `json:"header"`
	Body        []byte      `json:"body,omitzero"`
	BodyDropped bool        `json:"body_dropped,omitzero"` // forgotten for want of room
	Rule        string      `json:"rule,omitzero"`         // the rule that applied
	Rank        int         `json:"rank"`

	Outcome  Outcome   `json:"outcome"`
	Status   int       `json:"status,omitzero"` // sent; 0 before headers
	Answered time.Time `json:"answered,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	// Stage is where an aborted or stopped request was: delay, queued, prefill,
	// decode, writing, hang.
	Stage string `json:"stage,omitzero"`
	// Sent counts the response's body bytes, Tokens the output tokens written,
	// Cached the prompt tokens that were not computed.
	Sent   int    `json:"sent"`
	Prompt int    `json:"prompt_tokens,omitzero"`
	Tokens int    `json:"output_tokens,omitzero"`
	Cached int    `json:"cached_tokens,omitzero"`
	KV     string `json:"kv,omitzero"` // what became of a transfer
}

// Counters sum up all exchanges since the engine was made or reset.
type Counters struct {
	Received int `json:"received"`
	Served   int `json:"served"`
	Aborted  int `json:"aborted"`
	Cut      int `json:"cut"`
	Stopped  int `json:"stopped"`
	InFlight int `json:"in_flight"`
	Forgot   int `json:"forgot"` // records pushed out of the ring
	Conns    int `json:"connections"`
}

// recorder remembers the last exchanges within its bounds.
type recorder struct {
	clock           clock.Clock
	most, mostBytes int

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change; nil while nobody waits
	records  []*Record     // oldest first
	bytes    int
	seq      int
	counters Counters
}

func newRecorder(c clock.Clock, most, mostBytes int) *recorder {
	return &recorder{clock: c, most: most, mostBytes: mostBytes}
}

func (r *recorder) touch() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// begin takes note of a request.
func (r *recorder) begin(req *http.Request, body []byte, incarnation int) *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	rec := &Record{
		Seq: r.seq, Incarnation: incarnation, Time: r.clock.Now(), Remote: req.RemoteAddr,
		Method: req.Method, Path: req.URL.RequestURI(), Header: req.Header.Clone(), Body: body,
	}
	rec.Header.Set("Host", req.Host)
	r.records = append(r.records, rec)
	r.bytes += len(body)
	for len(r.records) > r.most {
		r.bytes -= len(r.records[0].Body)
		r.records[0] = nil
		r.records = r.records[1:]
		r.counters.Forgot++
	}
	for i := 0; r.bytes > r.mostBytes && i < len(r.records); i++ {
		if old := r.records[i]; len(old.Body) > 0 {
			r.bytes -= len(old.Body)
			old.Body, old.BodyDropped = nil, true
		}
	}
	r.counters.Received++
	r.counters.InFlight++
	r.touch()
	return rec
}

// update changes rec.
func (r *recorder) update(rec *Record, change func(*Record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(rec)
	r.touch()
}

// end closes rec; only the first call counts.
func (r *recorder) end(rec *Record, outcome Outcome, stage string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.Outcome != Pending {
		return
	}
	rec.Outcome, rec.Stage, rec.Ended = outcome, stage, r.clock.Now()
	r.counters.InFlight--
	switch outcome {
	case Served:
		r.counters.Served++
	case Aborted:
		r.counters.Aborted++
	case Broken:
		r.counters.Cut++
	case Stopped, Pending:
		r.counters.Stopped++
	}
	r.touch()
}

func (r *recorder) connected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters.Conns++
}

// snapshot copies the records after seq.
func (r *recorder) snapshot(after int) ([]Record, Counters) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.records, after+1, func(rec *Record, seq int) int { return rec.Seq - seq })
	out := make([]Record, 0, len(r.records)-i)
	for _, rec := range r.records[i:] {
		out = append(out, *rec)
	}
	return out, r.counters
}

// reset forgets the ended records and restarts the counters.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = slices.DeleteFunc(r.records, func(rec *Record) bool { return rec.Outcome != Pending })
	r.bytes = 0
	for _, rec := range r.records {
		r.bytes += len(rec.Body)
	}
	r.counters = Counters{InFlight: r.counters.InFlight}
	r.touch()
}

// await returns once ok holds for the counters and records.
func (r *recorder) await(ctx context.Context, ok func(Counters, []Record) bool) error {
	for {
		r.mu.Lock()
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		records, counters := r.snapshot(0)
		if ok(counters, records) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
