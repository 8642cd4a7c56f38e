package golden

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
)

// Report is how a policy did.
type Report struct {
	Policy string       `json:"policy"` // name@version
	Cases  []CaseReport `json:"cases"`
}

// CaseReport is how it did in one case.
type CaseReport struct {
	Name     string   `json:"name"`
	Calls    int      `json:"calls"`
	Fuel     int64    `json:"fuel"` // the most that a call used
	Problems []string `json:"problems,omitempty"`
}

// OK says whether every answer was the one expected.
func (r *Report) OK() bool {
	for _, c := range r.Cases {
		if len(c.Problems) > 0 {
			return false
		}
	}
	return true
}

// Run holds a policy to a golden file. Its error says that nothing could be run: the
// module is no policy, or the file is bad ([ErrFile]); answers other than the expected
// ones are in the report.
func Run(ctx context.Context, wasm, file []byte) (*Report, error) {
	report, _, err := run(ctx, wasm, file)
	return report, err
}

// Record returns the file with what the policy answers in place of what was
// expected.
func Record(ctx context.Context, wasm, file []byte) ([]byte, error) {
	_, f, err := run(ctx, wasm, file)
	if err != nil {
		return nil, err
	}
	return f.Format()
}

// run makes all calls; the file that it returns has the answers in it.
func run(ctx context.Context, wasm, data []byte) (*Report, *File, error) {
	f, err := Parse(data)
	if err != nil {
		return nil, nil, err
	}
	p, err := Load(ctx, wasm)
	if err != nil {
		return nil, nil, err
	}
	report, err := p.Run(f)
	return report, f, errors.Join(err, p.Close())
}

// Run is the function of that name for a policy that is loaded. Afterwards the file has
// the policy's answers in place of what was expected.
func (p *Program) Run(f *File) (*Report, error) {
	report := &Report{Policy: p.manifest.Name + "@" + p.manifest.Version}
	for i := range f.Cases {
		c, err := p.run(&f.Cases[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Cases[i].Name, err)
		}
		report.Cases = append(report.Cases, c)
	}
	return report, nil
}

// run makes a case's calls and puts the answers in the place of what was wanted.
func (p *Program) run(c *Case) (CaseReport, error) {
	r := CaseReport{Name: c.Name, Calls: len(c.Calls)}
	s, err := p.Open(c.Params, c.State)
	if err != nil {
		return r, err
	}
	for k := range c.Calls {
		got, fuel, err := s.Call(&c.Calls[k])
		if err != nil {
			return r, errors.Join(fmt.Errorf("call %d: %w", k+1, err), s.Close())
		}
		for _, problem := range c.Calls[k].Want.differences(got) {
			r.Problems = append(r.Problems, fmt.Sprintf("call %d: %s", k+1, problem))
		}
		c.Calls[k].Want = *got
		r.Fuel = max(r.Fuel, fuel)
	}
	return r, s.Close()
}

// Program is a compiled policy, for sessions.
type Program struct {
	ctx      context.Context //nolint:containedctx // a program is one task from Load to Close
	host     *host.Host
	code     *host.Code
	manifest *abi.Manifest
}

// Load compiles a policy. The caller closes it, after its sessions.
func Load(ctx context.Context, wasm []byte) (*Program, error) {
	metered, err := host.Prepare(wasm)
	if err != nil {
		return nil, err
	}
	h, err := host.New(ctx, &world{}, host.Options{})
	if err != nil {
		return nil, err
	}
	code, err := h.Compile(ctx, metered)
	if err != nil {
		return nil, errors.Join(err, h.Close(ctx))
	}
	return &Program{ctx: ctx, host: h, code: code, manifest: metered.Manifest}, nil
}

// Manifest is the policy's.
func (p *Program) Manifest() *abi.Manifest { return p.manifest }

// Close frees the program.
func (p *Program) Close() error {
	return errors.Join(p.code.Close(p.ctx), p.host.Close(p.ctx))
}

// Session is a policy that is called as a golden file's case says. It belongs to one
// goroutine.
type Session struct {
	program *Program
	params  []float64
	world   *world
	policy  *host.Policy
}

// Open starts a policy with parameters and a state. The caller closes the session.
func (p *Program) Open(params map[string]float64, state State) (*Session, error) {
	w, err := newWorld(state)
	if err != nil {
		return nil, err
	}
	values, err := ordered(p.manifest, params)
	if err != nil {
		return nil, err
	}
	s := &Session{program: p, params: values, world: w}
	return s, s.start()
}

// start makes a fresh instance: at the beginning, and after a fault.
func (s *Session) start() (err error) {
	s.policy, err = s.program.code.StartWith(s.program.ctx, s.world, 1, s.params)
	return err
}

// Close frees the session.
func (s *Session) Close() error { return s.policy.Close(s.program.ctx) }

// ordered makes named parameters the manifest's.
func ordered(m *abi.Manifest, params map[string]float64) ([]float64, error) {
	out := make([]float64, len(m.Params))
	found := 0
	for i, p := range m.Params {
		out[i] = p.Default
		if v, ok := params[p.Name]; ok {
			out[i] = v
			found++
		}
	}
	if found != len(params) {
		return nil, fmt.Errorf("%w: the policy has not all of the params %v", ErrFile, params)
	}
	return out, nil
}

// Call makes one call and returns the answer in full and the fuel that it used. Its
// errors are those of the call's description; a policy that faults has answered so.
func (s *Session) Call(c *Call) (got *Want, fuel int64, err error) {
	m := s.program.manifest
	if err := c.unread(m); err != nil {
		return nil, 0, err
	}
	s.world.begin(c.NowMillis)
	in := s.policy.Take()
	if in == nil {
		return nil, 0, fmt.Errorf("%w: no instance", host.ErrTrap)
	}
	filled, err := fill(in, m, c)
	if err != nil {
		s.policy.Put(in)
		return nil, 0, err
	}
	in.Seed(c.Seed)
	argument, err := c.put(m.Kind, filled, in.Request())
	if err != nil {
		s.policy.Put(in)
		return nil, 0, err
	}
	got, err = answer(in, m, argument)
	fuel = in.Used()
	s.policy.Put(in)
	if err != nil {
		got = &Want{Fault: fault(err)}
		if err := errors.Join(s.Close(), s.start()); err != nil {
			return nil, 0, err
		}
	}
	s.world.show(m, got)
	return got, fuel, nil
}

// fill writes the columns; those that the call does not have are unknown.
func fill(in *host.Instance, m *abi.Manifest, c *Call) (filled uint64, err error) {
	rows, err := c.rows()
	if err != nil {
		return 0, err
	}
	if rows > in.Rows() {
		return 0, fmt.Errorf("%w: %d rows are more than the policy's %d", ErrFile, rows, in.Rows())
	}
	types := map[string]abi.Type{}
	for _, k := range m.Kind.Columns() {
		types[k.Name] = k.Type
	}
	for i, use := range m.Columns {
		values, there := c.Columns[use.Name]
		switch {
		case there:
			filled |= 1 << i
		case !use.Optional:
			return 0, fmt.Errorf("%w: the column %q is missing; it is not optional", ErrFile, use.Name)
		}
		for row := range rows {
			var v *float64
			if there {
				v = values[row]
			}
			switch {
			case types[use.Name] == abi.U32 && v == nil:
				in.U32(i)[row] = abi.UnknownU32
			case types[use.Name] == abi.U32:
				// What is no such number would become another one on each architecture.
				if !(*v >= 0 && *v <= math.MaxUint32) || *v != math.Trunc(*v) {
					return 0, fmt.Errorf("%w: row %d of the column %q is %v; it is a whole number from 0 to %d", ErrFile, row, use.Name, *v, uint32(math.MaxUint32))
				}
				in.U32(i)[row] = uint32(*v)
			case v == nil:
				in.F32(i)[row] = float32(math.NaN())
			default:
				in.F32(i)[row] = float32(*v)
			}
		}
	}
	return filled, nil
}

// answer makes the kind's call.
func answer(in *host.Instance, m *abi.Manifest, argument int) (*Want, error) {
	got := &Want{}
	switch m.Kind {
	case abi.Router:
		scores, err := in.Score(argument)
		if err != nil {
			return nil, err
		}
		got.Score, got.Pick = numbers(scores)
	case abi.Admission:
		v, err := in.Admit()
		if err != nil {
			return nil, err
		}
		got.Action = actions[v.Action]
		got.Priority, got.Status, got.Retry = new(v.Priority), v.Status, new(v.RetryAfter)
	case abi.Autoscaler:
		desired, reason, err := in.Tick(argument)
		if err != nil {
			return nil, err
		}
		got.Desired, got.Reason = append([]uint32{}, desired...), append([]uint32{}, reason...)
	case abi.Observer:
		return got, in.Observe(argument)
	}
	return got, nil
}

var actions = [...]string{abi.Admit: "admit", abi.Queue: "queue", abi.Reject: "reject", abi.Degrade: "degrade"}

// numbers are scores, nil where a candidate is ineligible, and the first least one.
func numbers(scores []float32) ([]*float64, *int) {
	out, pick := make([]*float64, len(scores)), -1
	for i, v := range scores {
		if v-v != 0 { // NaN or infinite
			continue
		}
		out[i] = new(float64(v))
		if pick < 0 || v < scores[pick] {
			pick = i
		}
	}
	return out, &pick
}

func fault(err error) string {
	switch {
	case errors.Is(err, host.ErrFuel):
		return "fuel"
	case errors.Is(err, host.ErrTrap):
		return "trap"
	default:
		return "refused"
	}
}

// text writes bytes as a file has them.
func text(b []byte) string {
	s := string(b)
	if strings.HasPrefix(s, "hex:") || strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) {
		return "hex:" + hex.EncodeToString(b)
	}
	return s
}

func untext(s string) (string, error) {
	digits, ok := strings.CutPrefix(s, "hex:")
	if !ok {
		return s, nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return "", fmt.Errorf("%w: state: %w", ErrFile, err)
	}
	return string(b), nil
}
