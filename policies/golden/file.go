package golden

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// ErrFile says that a golden file cannot be read, or does not fit the policy.
var ErrFile = errors.New("bad golden file")

// MostBytes bounds a golden file.
const MostBytes = 16 << 20

// File is a golden file.
type File struct {
	Cases []Case `json:"cases"`
}

// Case is a sequence of calls of one policy, with a state of its own.
type Case struct {
	Name   string             `json:"name"`
	Params map[string]float64 `json:"params,omitempty"` // those left out have their defaults
	State  State              `json:"state,omitzero"`   // before the first call
	Calls  []Call             `json:"calls"`
}

// State is what a policy remembers. Keys and values are text, or "hex:" and digits.
type State struct {
	Local      map[string]string `json:"local,omitempty"`
	Replicated map[string]string `json:"replicated,omitempty"`
}

// Call is one decision.
type Call struct {
	NowMillis int64  `json:"now_ms,omitzero"`
	Seed      uint64 `json:"seed,omitzero"`
	// Request has the fields of the kind's request block, by the names of
	// plugins-sdk/SPEC.md. Those left out are unknown where they can be, else 0.
	Request jsontext.Value `json:"request,omitempty"`
	// Rows says how many there are where no column does.
	Rows    int                   `json:"rows,omitzero"`
	Columns map[string][]*float64 `json:"columns,omitempty"` // null is unknown
	Want    Want                  `json:"want,omitzero"`
}

// Want is what a call should answer; what is left out is not compared.
type Want struct {
	Score    []*float64       `json:"score,omitempty"` // null is ineligible
	Pick     *int             `json:"pick,omitzero"`   // the first row of the least score, or -1
	Action   string           `json:"action,omitempty"`
	Priority *uint8           `json:"priority,omitzero"`
	Status   uint16           `json:"status,omitzero"`
	Retry    *uint32          `json:"retry_after_ms,omitzero"`
	Desired  []uint32         `json:"desired,omitzero"`
	Reason   []uint32         `json:"reason,omitzero"`
	Counters map[string]int64 `json:"counters,omitzero"` // what the call added
	State    State            `json:"state,omitzero"`    // what the call wrote
	// Fault is "refused", "fuel" or "trap" where the policy is to have no answer.
	Fault string `json:"fault,omitempty"`
}

// Parse reads a golden file. Errors wrap [ErrFile].
func Parse(data []byte) (*File, error) {
	if len(data) > MostBytes {
		return nil, fmt.Errorf("%w: it has %d bytes; at most %d are allowed", ErrFile, len(data), MostBytes)
	}
	var f File
	if err := json.Unmarshal(data, &f, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	for i, c := range f.Cases {
		if c.Name == "" || len(c.Calls) == 0 {
			return nil, fmt.Errorf("%w: case %d has no name or no calls", ErrFile, i)
		}
		for k, call := range c.Calls {
			if _, err := call.rows(); err != nil {
				return nil, fmt.Errorf("%w: %s, call %d: %w", ErrFile, c.Name, k+1, err)
			}
		}
	}
	return &f, nil
}

// Format writes a golden file; lists of numbers stand on one line each.
func (f *File) Format() ([]byte, error) {
	data, err := json.Marshal(f, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, err
	}
	list, next, ends := regexp.MustCompile(`\[[^\[\]{}]*\]`), regexp.MustCompile(`,\n\s*`), regexp.MustCompile(`\n\s*`)
	data = list.ReplaceAllFunc(data, func(b []byte) []byte {
		return ends.ReplaceAll(next.ReplaceAll(b, []byte(", ")), nil)
	})
	return append(data, '\n'), nil
}

// rows is how many the columns have.
func (c *Call) rows() (int, error) {
	rows := c.Rows
	for name, column := range c.Columns {
		if rows == 0 {
			rows = len(column)
		}
		if len(column) != rows {
			return 0, fmt.Errorf("column %q has %d rows, another or \"rows\" has %d", name, len(column), rows)
		}
	}
	if rows < 0 || rows > abi.MostRows {
		return 0, fmt.Errorf("%d rows; there may be up to %d", rows, abi.MostRows)
	}
	return rows, nil
}

// The request blocks in JSON.
type (
	routerRequest struct {
		Model       uint64   `json:"model,omitzero"`
		Tenant      uint64   `json:"tenant,omitzero"`
		Session     uint64   `json:"session,omitzero"`
		Prompt      uint32   `json:"prompt,omitzero"`
		Output      *uint32  `json:"output,omitzero"`
		BlockTokens uint32   `json:"block_tokens,omitzero"`
		Class       uint32   `json:"class,omitzero"`
		Phase       uint32   `json:"phase,omitzero"`
		SLOFirst    *float32 `json:"slo_ttft_ms,omitzero"`
		SLOBetween  *float32 `json:"slo_itl_ms,omitzero"`
		Waited      *float32 `json:"waited_ms,omitzero"`
	}
	admissionRequest struct {
		Model         uint64   `json:"model,omitzero"`
		Tenant        uint64   `json:"tenant,omitzero"`
		Prompt        uint32   `json:"prompt,omitzero"`
		Output        *uint32  `json:"output,omitzero"`
		Class         uint32   `json:"class,omitzero"`
		Queued        uint32   `json:"queued,omitzero"`
		TenantQueued  uint32   `json:"tenant_queued,omitzero"`
		TenantRunning uint32   `json:"tenant_running,omitzero"`
		Workers       uint32   `json:"workers,omitzero"`
		Waiting       uint32   `json:"waiting,omitzero"`
		TenantTokens  *float32 `json:"tenant_tokens,omitzero"`
		TenantService float32  `json:"tenant_service,omitzero"`
		LeastService  float32  `json:"least_service,omitzero"`
		KVUsage       *float32 `json:"kv_usage,omitzero"`
		First         *float32 `json:"ttft_ms,omitzero"`
		SLOFirst      *float32 `json:"slo_ttft_ms,omitzero"`
		Deadline      *float32 `json:"deadline_ms,omitzero"`
		Waited        *float32 `json:"waited_ms,omitzero"`
		Between       *float32 `json:"itl_ms,omitzero"`
		SLOBetween    *float32 `json:"slo_itl_ms,omitzero"`
	}
	poolsRequest struct {
		Pools    uint32 `json:"pools"`
		Samples  uint32 `json:"samples"`
		Interval uint32 `json:"interval_ms,omitzero"`
		Budget   uint32 `json:"budget,omitzero"`
	}
	outcomesRequest struct {
		Leader uint32 `json:"leader,omitzero"`
		Lost   uint32 `json:"lost,omitzero"`
	}
)

func known(v *float32) float32 {
	if v == nil {
		return float32(math.NaN())
	}
	return *v
}

func count(v *uint32) uint32 {
	if v == nil {
		return abi.UnknownU32
	}
	return *v
}

// read fills one of the blocks above.
func (c *Call) read(into any) error {
	if len(c.Request) == 0 {
		return nil
	}
	if err := json.Unmarshal(c.Request, into, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: request: %w", ErrFile, err)
	}
	return nil
}

// put writes the call's request block. filled has a bit for each column that is
// there. calls is the argument of the call: rows, or pools.
func (c *Call) put(kind abi.Kind, filled uint64, block []byte) (argument int, err error) {
	rows, err := c.rows()
	if err != nil {
		return 0, err
	}
	switch kind {
	case abi.Router:
		var r routerRequest
		err = c.read(&r)
		(&abi.RouterRequest{
			Seed: c.Seed, Model: r.Model, Tenant: r.Tenant, Session: r.Session, Columns: filled, Prompt: r.Prompt, Output: count(r.Output),
			BlockTokens: r.BlockTokens, Class: r.Class, Phase: r.Phase, SLOFirst: known(r.SLOFirst), SLOBetween: known(r.SLOBetween), WaitedMillis: known(r.Waited),
		}).Put(block)
	case abi.Admission:
		var r admissionRequest
		err = c.read(&r)
		(&abi.AdmissionRequest{
			Seed: c.Seed, Model: r.Model, Tenant: r.Tenant, Prompt: r.Prompt, Output: count(r.Output), Class: r.Class, Queued: r.Queued,
			TenantQueued: r.TenantQueued, TenantRunning: r.TenantRunning, Workers: r.Workers, Waiting: r.Waiting,
			TenantTokens: known(r.TenantTokens), TenantService: r.TenantService, LeastService: r.LeastService, KVUsage: known(r.KVUsage),
			FirstMillis: known(r.First), SLOFirst: known(r.SLOFirst), DeadlineMillis: known(r.Deadline), WaitedMillis: known(r.Waited),
			BetweenMillis: known(r.Between), SLOBetween: known(r.SLOBetween),
		}).Put(block)
	case abi.Autoscaler:
		var r poolsRequest
		if err = c.read(&r); err == nil && uint64(r.Pools)*uint64(r.Samples) != uint64(rows) && len(c.Columns) > 0 {
			err = fmt.Errorf("%w: %d pools × %d samples are not %d rows", ErrFile, r.Pools, r.Samples, rows)
		}
		(&abi.PoolsRequest{
			NowMillis: uint64(c.NowMillis), Seed: c.Seed, Columns: filled, Pools: r.Pools, Samples: r.Samples, IntervalMillis: r.Interval, Budget: r.Budget,
		}).Put(block)
		rows = int(r.Pools)
	case abi.Observer:
		var r outcomesRequest
		err = c.read(&r)
		(&abi.OutcomesRequest{NowMillis: uint64(c.NowMillis), Seed: c.Seed, Columns: filled, Leader: r.Leader, Lost: r.Lost}).Put(block)
	}
	return rows, err
}

// unread are columns of the file that the policy does not read: a name misspelt.
func (c *Call) unread(m *abi.Manifest) error {
	for name := range c.Columns {
		if !slices.ContainsFunc(m.Columns, func(u abi.Use) bool { return u.Name == name }) {
			return fmt.Errorf("%w: the policy reads no column %q", ErrFile, name)
		}
	}
	return nil
}
