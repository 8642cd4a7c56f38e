package vet

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/policies/host"
	"github.com/yardmaster/yardmaster/policies/module"
)

// mostTrialFuel is when a dry run ends early, in units of all its calls together: the
// interpreter takes some ten nanoseconds for one.
const mostTrialFuel = 150_000_000

// trial compiles a module and, if the job says so, tries it. It does not fail: what
// goes wrong is a refusal.
func trial(ctx context.Context, j job, m *host.Metered) result {
	r := Report{Trial: &Trial{MeteredBytes: len(m.Wasm), Pauses: m.Pauses(), MostMemory: int64(m.Manifest.Pages) * module.PageSize}}
	t := tester{ctx: ctx, job: j, metered: m, report: &r}
	if t.compiled() && j.Mode == modeVet {
		t.interpreted()
	}
	if err := t.close(context.WithoutCancel(ctx)); err != nil && r.Err() == nil {
		_ = r.refused(StepDryRun, time.Now(), fmt.Errorf("the policy could not be closed: %w", err))
	}
	return result{Steps: r.Steps, Trial: r.Trial}
}

// tester tries one module in both engines.
type tester struct {
	ctx      context.Context
	job      job
	metered  *host.Metered
	report   *Report
	closers  []func(context.Context) error
	expected []answer // of the compiled code
}

// close frees everything in the order in which it depends on one another.
func (t *tester) close(ctx context.Context) error {
	var all []error
	for _, f := range slices.Backward(t.closers) {
		all = append(all, f(ctx))
	}
	return errors.Join(all...)
}

// start compiles the module in an engine.
func (t *tester) start(o host.Options) (*host.Code, *services, error) {
	s := newServices()
	h, err := host.New(t.ctx, s, o)
	if err != nil {
		return nil, nil, err
	}
	t.closers = append(t.closers, h.Close)
	code, err := h.Compile(t.ctx, t.metered)
	if err != nil {
		return nil, nil, err
	}
	t.closers = append(t.closers, code.Close)
	return code, s, nil
}

// instance makes one instance and lends it.
func (t *tester) instance(code *host.Code) (*host.Instance, error) {
	p, err := code.Start(t.ctx, 1, nil)
	if err != nil {
		return nil, err
	}
	t.closers = append(t.closers, p.Close)
	in := p.Take()
	t.closers = append(t.closers, func(context.Context) error { p.Put(in); return nil })
	return in, nil
}

// compiled does the steps that run compiled code. It says whether all went well.
func (t *tester) compiled() bool {
	began := time.Now()
	code, s, err := t.start(host.Options{Cache: t.job.Cache, Workers: runtime.GOMAXPROCS(0)})
	if err != nil {
		_ = t.report.refused(StepCompile, began, err)
		return false
	}
	t.report.Trial.CodeBytes = cachedBytes(t.job.Cache, began)
	t.report.passed(StepCompile, began, "%d bytes of WebAssembly with fuel, %d bytes of machine code kept", len(t.metered.Wasm), t.report.Trial.CodeBytes)
	if t.job.Mode == modeCompile {
		return true
	}

	began = time.Now()
	in, err := t.instance(code)
	if err != nil {
		_ = t.report.refused(StepStart, began, err)
		return false
	}
	t.report.Trial.StartFuel, t.report.Trial.Rows = in.StartFuel(), in.Rows()
	t.report.passed(StepStart, began, "columns of %d rows, memory of %d KiB, %d units of fuel to start", in.Rows(), in.MemoryBytes()>>10, in.StartFuel())

	began = time.Now()
	t.expected, err = t.run(in, s)
	if err == nil {
		err = in.Stable()
	}
	if err != nil {
		_ = t.report.refused(StepDryRun, began, err)
		return false
	}
	t.report.Trial.MemoryBytes = in.MemoryBytes()
	t.summarise(began)
	return t.report.Err() == nil
}

// interpreted runs the same calls in the interpreter and compares.
func (t *tester) interpreted() {
	began := time.Now()
	code, s, err := t.start(host.Options{Interpreter: true})
	if err != nil {
		_ = t.report.refused(StepCompare, began, err)
		return
	}
	in, err := t.instance(code)
	if err != nil {
		_ = t.report.refused(StepCompare, began, fmt.Errorf("in the interpreter: %w", err))
		return
	}
	got, err := t.run(in, s)
	if err != nil {
		_ = t.report.refused(StepCompare, began, fmt.Errorf("in the interpreter: %w", err))
		return
	}
	if err := compare(t.expected, got); err != nil {
		_ = t.report.refused(StepCompare, began, err)
		return
	}
	t.report.passed(StepCompare, began, "%d calls gave the same bits in the interpreter, and used the same fuel", len(got))
}

// errTime says that the calls took too long.
var errTime = errors.New("the calls took too long; use less fuel")

// run makes the calls and returns their answers.
func (t *tester) run(in *host.Instance, s *services) ([]answer, error) {
	var out []answer
	fuel := int64(0)
	for _, c := range cases(t.metered.Manifest.Kind, in.Rows()) {
		if t.ctx.Err() != nil {
			return nil, errTime
		}
		if fuel > mostTrialFuel {
			break
		}
		s.step()
		a, err := c.call(in, t.metered)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c, err)
		}
		a.effects = s.sum()
		out = append(out, a)
		fuel += a.fuel
	}
	return out, nil
}

// summarise writes what the dry run showed.
func (t *tester) summarise(began time.Time) {
	tr := t.report.Trial
	var all, largest []int64
	rows, useful := 0, 0
	for _, a := range t.expected {
		rows = max(rows, a.of.rows)
	}
	for _, a := range t.expected {
		all = append(all, a.fuel)
		if a.of.rows == rows {
			largest = append(largest, a.fuel)
		}
		switch {
		case a.unanswered:
			tr.Unanswered++
		case a.useful:
			useful++
		}
	}
	budget := t.metered.Manifest.Fuel
	tr.Calls, tr.Fuel, tr.Largest = len(all), fuelOf(budget, all), fuelOf(budget, largest)
	text := fmt.Sprintf("%d calls, fuel p50 %d, p99 %d, at most %d of %d", len(all), tr.Fuel.P50, tr.Fuel.P99, tr.Fuel.Max, budget)
	if tr.Unanswered > 0 {
		text += fmt.Sprintf("; to %d of them the policy has no answer, so that the fallback would decide", tr.Unanswered)
	}
	switch {
	case tr.Unanswered == len(all):
		_ = t.report.refused(StepDryRun, began, errors.New("the policy answered none of the calls, so that its fallback would decide everything"))
		return
	case useful == 0:
		_ = t.report.refused(StepDryRun, began, errors.New("the policy gave no candidate a score that is a number in any of the calls, so that its fallback would decide everything"))
		return
	}
	if tr.Pauses && t.report.Trial.StartFuel < host.PauseAbove && 2*tr.Fuel.Max <= host.PauseAbove {
		text += fmt.Sprintf(`; with "fuel": %d in its manifest it would run without pauses, somewhat faster`, host.PauseAbove)
	}
	t.report.passed(StepDryRun, began, "%s", text)
}

func fuelOf(budget int64, used []int64) Fuel {
	f := Fuel{Budget: budget}
	if len(used) == 0 {
		return f
	}
	slices.Sort(used)
	f.P50, f.P99, f.Max = used[len(used)/2], used[len(used)*99/100], used[len(used)-1]
	return f
}

// compare finds the first call whose answers differ.
func compare(want, got []answer) error {
	if len(want) != len(got) {
		return fmt.Errorf("compiled code took %d calls for its fuel, the interpreter %d", len(want), len(got))
	}
	for i := range want {
		if why := want[i].differs(&got[i]); why != "" {
			return fmt.Errorf("%s: %s; the policy depends on more than its input, or the runtime's compiler is wrong: send it to us", want[i].of, why)
		}
	}
	return nil
}
