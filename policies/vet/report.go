package vet

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// ErrRefused says that an upload may not run. The report says why.
var ErrRefused = errors.New("policy refused")

// ErrChild says that the process which tries a policy could not do its work, for no
// fault of the policy's.
var ErrChild = errors.New("trial of the policy could not be carried out")

// Verdict is what came of a step.
type Verdict string

// The verdicts.
const (
	Passed  Verdict = "passed"
	Refused Verdict = "refused"
	Skipped Verdict = "skipped" // not done, and nobody asked for it
)

// The steps, in their order.
const (
	StepSize      = "size"
	StepDigest    = "digest"
	StepSignature = "signature"
	StepStructure = "structure"
	StepContract  = "contract"
	StepMeter     = "meter"
	StepCompile   = "compile"
	StepStart     = "start"
	StepDryRun    = "dry-run"
	StepCompare   = "compare"
)

// Step is one step of the pipeline.
type Step struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"` // a sentence for people
	Millis  float64 `json:"ms"`
}

// Report is what is known of an upload.
type Report struct {
	Digest   string        `json:"digest"` // SHA-256 of the upload, in hex
	Bytes    int           `json:"bytes"`
	Name     string        `json:"name,omitempty"`
	Version  string        `json:"version,omitempty"`
	Kind     abi.Kind      `json:"kind,omitempty"`
	Signer   string        `json:"signer,omitempty"` // the name of the key that signed it; empty: unsigned
	Accepted bool          `json:"accepted"`
	Steps    []Step        `json:"steps"`
	Trial    *Trial        `json:"trial,omitempty"`
	Manifest *abi.Manifest `json:"manifest,omitempty"`
}

// Trial is what was measured in the child.
type Trial struct {
	MeteredBytes int   `json:"metered_bytes"`     // of the module with its fuel
	CodeBytes    int64 `json:"code_bytes"`        // of the cached machine code; 0 if nothing is kept
	MemoryBytes  int64 `json:"memory_bytes"`      // of one instance, after the dry run
	MostMemory   int64 `json:"most_memory_bytes"` // that one instance can have
	Rows         int   `json:"rows,omitempty"`    // that its columns have room for
	Calls        int   `json:"calls"`             // of the dry run, of each engine
	Unanswered   int   `json:"unanswered"`        // to which the guest said that it has no answer
	Pauses       bool  `json:"pauses"`            // its calls come up for breath, which costs some speed
	Fuel         Fuel  `json:"fuel"`              // of all calls
	Largest      Fuel  `json:"fuel_largest"`      // of the calls with the most rows
	StartFuel    int64 `json:"fuel_start"`        // of _initialize, ym_layout and ym_configure
}

// Fuel is what calls used, in units.
type Fuel struct {
	Budget int64 `json:"budget"`
	P50    int64 `json:"p50"`
	P99    int64 `json:"p99"`
	Max    int64 `json:"max"`
}

// Add appends a step that was done elsewhere, such as a replay of recorded decisions.
func (r *Report) Add(s Step) {
	r.Steps = append(r.Steps, s)
	r.Accepted = r.Accepted && s.Verdict != Refused
}

// Err is nil for a report without a refusal, else the sentence of the step that
// refused, wrapping [ErrRefused].
func (r *Report) Err() error {
	for _, s := range r.Steps {
		if s.Verdict == Refused {
			return fmt.Errorf("%w at step %s: %s", ErrRefused, s.Name, s.Text)
		}
	}
	return nil
}

// Judged puts in what others made of the signature, where [Config.Elsewhere] left it to
// them: by which key it was signed, empty for none, or why they do not take it.
func (r *Report) Judged(signer string, why error) {
	for i := range r.Steps {
		s := &r.Steps[i]
		switch {
		case s.Name != StepSignature:
		case why != nil:
			s.Verdict, s.Text, r.Accepted = Refused, sentence(why), false
		case signer != "":
			s.Text, r.Signer = "signed by "+signer+", say the planners", signer
		default:
			s.Text = "accepted by the planners without a signature that counts"
		}
	}
}

// passed and refused append a step that began at a moment.
func (r *Report) passed(name string, began time.Time, format string, args ...any) {
	r.Steps = append(r.Steps, Step{name, Passed, fmt.Sprintf(format, args...), millis(time.Since(began))})
}

func (r *Report) refused(name string, began time.Time, why error) error {
	r.Steps = append(r.Steps, Step{name, Refused, sentence(why), millis(time.Since(began))})
	return fmt.Errorf("%w at step %s: %w", ErrRefused, name, why)
}

// nameless is a function in a stack trace that has a number only.
var nameless = regexp.MustCompile(`\n\t\.\$[0-9]+[^\n]*`)

// sentence is an error on one line: several problems behind one another, and the
// runtime's stack traces as a list of those functions that have names.
func sentence(err error) string {
	text := strings.ReplaceAll(nameless.ReplaceAllString(err.Error(), ""), "\nwasm stack trace:\n\t", " in ")
	text = strings.ReplaceAll(text, "\nwasm stack trace:", "")
	return strings.ReplaceAll(strings.ReplaceAll(text, "\n\t", ", from "), "\n", "; ")
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
