package abi

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Section is the name of the custom section that holds the manifest.
const Section = "yardmaster.manifest"

// The bounds of a manifest.
const (
	MostManifest = 16 << 10 // bytes
	MostColumns  = 64       // a bit for each in the request block
	MostParams   = 64
	MostMetrics  = 32 // counters, and histograms
	MostBuckets  = 24 // of a histogram
	mostHelp     = 256
	mostName     = 63
)

// ErrManifest says that a manifest is missing or says what it may not.
var ErrManifest = errors.New("bad manifest")

// Manifest is what a policy says of itself, in JSON.
type Manifest struct {
	ABI          string       `json:"abi"` // "1.0"
	Kind         Kind         `json:"kind"`
	Name         string       `json:"name"`    // a to z, 0 to 9 and -, up to 63
	Version      string       `json:"version"` // the author's own, up to 32 letters, digits, ., _, + and -
	Columns      []Use        `json:"columns,omitempty"`
	Params       []Param      `json:"params,omitempty"`
	Capabilities []Capability `json:"capabilities,omitempty"`
	Counters     []Metric     `json:"counters,omitempty"`
	Histograms   []Metric     `json:"histograms,omitempty"`
	Fuel         int64        `json:"fuel,omitempty"`     // for a call; 0 is the kind's default
	Pages        uint32       `json:"pages,omitempty"`    // of 64 KiB; 0 is StandardPages
	Fallback     string       `json:"fallback,omitempty"` // the native policy that answers in its place; empty is the default one
	// Fail says what an admission policy that cannot answer means: "open", the
	// request is admitted, or "closed". Other kinds have none.
	Fail string `json:"fail,omitempty"`
	// State is the name of the policy whose state this one uses; empty is its own. So
	// a router reads what an observer has learnt.
	State string `json:"state,omitempty"`
}

// StateOf is the name of the policy whose state this one uses.
func (m *Manifest) StateOf() string {
	if m.State != "" {
		return m.State
	}
	return m.Name
}

// Use is a column that a policy reads.
type Use struct {
	Name string `json:"name"`
	// Optional lets the policy run where the host does not have the column; all its
	// values are unknown then.
	Optional bool `json:"optional,omitempty"`
}

// ParamType is the type of a parameter.
type ParamType string

// The types of parameters. Each takes 8 bytes in the parameter block.
const (
	Float ParamType = "float" // f64
	Int   ParamType = "int"   // i64, exact up to 2^53
	Bool  ParamType = "bool"  // i64, 0 or 1
)

// Param is a parameter that operators may set.
type Param struct {
	Name    string    `json:"name"`
	Type    ParamType `json:"type"`
	Default float64   `json:"default"` // 0 or 1 for a bool
	Min     *float64  `json:"min,omitempty"`
	Max     *float64  `json:"max,omitempty"`
	Help    string    `json:"help,omitempty"`
}

// Metric is a counter or a histogram; the policy names it by its place in the list.
type Metric struct {
	Name    string    `json:"name"`
	Help    string    `json:"help,omitempty"`
	Buckets []float64 `json:"buckets,omitempty"` // upper bounds, of histograms only
}

// ParseManifest reads and validates a manifest. Unknown and repeated members are
// refused; empty values take their defaults. Errors wrap [ErrManifest] and name
// every problem.
func ParseManifest(data []byte) (*Manifest, error) {
	if len(data) > MostManifest {
		return nil, fmt.Errorf("%w: it has %d bytes; at most %d are allowed", ErrManifest, len(data), MostManifest)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrManifest, jsonReason(err))
	}
	var p problems
	m.validate(&p)
	if len(p) > 0 {
		return nil, fmt.Errorf("%w: %w", ErrManifest, errors.Join(p...))
	}
	m.fill()
	return &m, nil
}

// jsonReason says what is wrong with a manifest's JSON without naming Go's types.
func jsonReason(err error) string {
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		at := string(e.JSONPointer)
		switch {
		case errors.Is(err, json.ErrUnknownName):
			return fmt.Sprintf("the member %s is unknown; is it misspelt?", at)
		case at == "":
			return "it must be an object"
		case e.Err != nil:
			return fmt.Sprintf("the value of %s does not fit: %v", at, e.Err)
		default:
			return fmt.Sprintf("the value of %s is of the wrong type", at)
		}
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if errors.Is(err, jsontext.ErrDuplicateName) {
			return fmt.Sprintf("the member %s stands there twice", e.JSONPointer)
		}
		return fmt.Sprintf("it is not JSON at byte %d: %v", e.ByteOffset, e.Err)
	}
	return err.Error()
}

func (m *Manifest) fill() {
	if m.Fuel == 0 {
		m.Fuel = budgets[m.Kind].standard
	}
	if m.Pages == 0 {
		m.Pages = StandardPages
	}
	if m.Kind == Admission && m.Fail == "" {
		m.Fail = "open"
	}
}

// problems are the sentences on what is wrong.
type problems []error

func (p *problems) addf(format string, args ...any) {
	if len(*p) < 20 {
		*p = append(*p, fmt.Errorf(format, args...))
	}
}

func (m *Manifest) validate(p *problems) {
	m.validateVersion(p)
	if !m.Kind.known() {
		p.addf("kind %q is unknown; it is one of %s", m.Kind, list(Kinds()))
		return
	}
	if !isName(m.Name) {
		p.addf("name %q must have from 1 to 63 of a-z, 0-9, - and _, and begin with a letter", m.Name)
	}
	if n := len(m.Version); n < 1 || n > 32 || strings.ContainsFunc(m.Version, outsideVersions) {
		p.addf("version %q must have from 1 to 32 of letters, digits, ., _, + and -", m.Version)
	}
	m.validateColumns(p)
	m.validateParams(p)
	m.validateMetrics(p)
	m.validateGrants(p)
}

// outsideVersions reports whether a version may not have the letter: it stands in
// commands and paths as it is.
func outsideVersions(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._+-", r)
}

func (m *Manifest) validateVersion(p *problems) {
	major, minor, ok := strings.Cut(m.ABI, ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	switch {
	case !ok || err1 != nil || err2 != nil:
		p.addf(`abi %q is no version; write "%d.%d"`, m.ABI, Major, Minor)
	case a != Major:
		p.addf("abi %s is another major version than this host's %d.%d; build with an SDK for %d.x", m.ABI, Major, Minor, Major)
	case b > Minor:
		p.addf("abi %s is newer than this host's %d.%d; upgrade the hosts first, or build for %d.%d", m.ABI, Major, Minor, Major, Minor)
	case b < 0:
		p.addf("abi %q is no version", m.ABI)
	}
}

// list joins words for a sentence.
func list[T ~string](words []T) string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return strings.Join(s, ", ")
}

// isName says whether s is made of a-z, 0-9, - and _, and begins with a letter.
func isName(s string) bool {
	if s == "" || len(s) > mostName || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

func (m *Manifest) validateColumns(p *problems) {
	if len(m.Columns) > MostColumns {
		p.addf("%d columns are more than %d", len(m.Columns), MostColumns)
		return
	}
	known := m.Kind.Columns()
	seen := map[string]bool{}
	for _, c := range m.Columns {
		at := slices.IndexFunc(known, func(k Column) bool { return k.Name == c.Name })
		switch {
		case seen[c.Name]:
			p.addf("column %q is listed twice", c.Name)
		case at < 0 && len(known) == 0:
			p.addf("column %q: policies of kind %s read a request block and no columns", c.Name, m.Kind)
		case at < 0 && !c.Optional:
			p.addf("column %q is unknown; kind %s has %s", c.Name, m.Kind, list(columnNames(known)))
		}
		seen[c.Name] = true
	}
}

func columnNames(columns []Column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

func (m *Manifest) validateParams(p *problems) {
	if len(m.Params) > MostParams {
		p.addf("%d params are more than %d", len(m.Params), MostParams)
		return
	}
	seen := map[string]bool{}
	for _, q := range m.Params {
		switch {
		case !isName(q.Name):
			p.addf("param %q must have from 1 to 63 of a-z, 0-9, - and _, and begin with a letter", q.Name)
		case seen[q.Name]:
			p.addf("param %q is listed twice", q.Name)
		case q.Type != Float && q.Type != Int && q.Type != Bool:
			p.addf("param %q has the unknown type %q; it is one of float, int, bool", q.Name, q.Type)
		case q.Min != nil && q.Max != nil && *q.Min > *q.Max:
			p.addf("param %q has a min of %v above its max of %v", q.Name, *q.Min, *q.Max)
		case len(q.Help) > mostHelp:
			p.addf("the help of param %q has more than %d bytes", q.Name, mostHelp)
		default:
			if err := q.Accepts(q.Default); err != nil {
				p.addf("the default of %w", err)
			}
		}
		seen[q.Name] = true
	}
}

// Accepts says why a value cannot be the parameter's, or nil.
func (q Param) Accepts(v float64) error {
	const exact = 1 << 53
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return fmt.Errorf("param %q is no number", q.Name)
	case q.Type == Bool && v != 0 && v != 1:
		return fmt.Errorf("param %q is %v; a bool is 0 or 1", q.Name, v)
	case q.Type == Int && (v != math.Trunc(v) || math.Abs(v) > exact):
		return fmt.Errorf("param %q is %v; an int is whole and below 2^53", q.Name, v)
	case q.Min != nil && v < *q.Min:
		return fmt.Errorf("param %q is %v, below its min of %v", q.Name, v, *q.Min)
	case q.Max != nil && v > *q.Max:
		return fmt.Errorf("param %q is %v, above its max of %v", q.Name, v, *q.Max)
	}
	return nil
}

func (m *Manifest) validateMetrics(p *problems) {
	seen := map[string]bool{}
	check := func(what string, metrics []Metric, buckets bool) {
		if len(metrics) > MostMetrics {
			p.addf("%d %ss are more than %d", len(metrics), what, MostMetrics)
			return
		}
		for _, q := range metrics {
			switch {
			case !isName(q.Name) || strings.Contains(q.Name, "-"):
				p.addf("%s %q must have from 1 to 63 of a-z, 0-9 and _, and begin with a letter", what, q.Name)
			case seen[q.Name]:
				p.addf("%s %q is listed twice", what, q.Name)
			case len(q.Help) > mostHelp:
				p.addf("the help of %s %q has more than %d bytes", what, q.Name, mostHelp)
			case !buckets && len(q.Buckets) > 0:
				p.addf("counter %q has buckets; only histograms do", q.Name)
			case buckets && (len(q.Buckets) < 1 || len(q.Buckets) > MostBuckets || !rising(q.Buckets)):
				p.addf("histogram %q needs from 1 to %d buckets that rise", q.Name, MostBuckets)
			}
			seen[q.Name] = true
		}
	}
	check("counter", m.Counters, false)
	check("histogram", m.Histograms, true)
}

func rising(v []float64) bool {
	for i := 1; i < len(v); i++ {
		if v[i] <= v[i-1] {
			return false
		}
	}
	return true
}

func (m *Manifest) validateGrants(p *problems) {
	seen := map[Capability]bool{}
	for _, c := range m.Capabilities {
		switch {
		case !slices.Contains(Capabilities(), c):
			p.addf("capability %q is unknown; there are %s", c, list(Capabilities()))
		case seen[c]:
			p.addf("capability %q is listed twice", c)
		}
		seen[c] = true
	}
	if len(m.Counters)+len(m.Histograms) > 0 && !seen[CapabilityMetrics] {
		p.addf("counters and histograms need the capability metrics")
	}
	if most := budgets[m.Kind].most; m.Fuel < 0 || m.Fuel > most {
		p.addf("fuel is %d; a policy of kind %s may ask for up to %d", m.Fuel, m.Kind, most)
	}
	if m.Pages > MostPages {
		p.addf("pages is %d; a policy may ask for up to %d", m.Pages, MostPages)
	}
	if m.State != "" && (!isName(m.State) || !seen[CapabilityState]) {
		p.addf("state %q names a policy, and needs the capability state", m.State)
	}
	if m.Fallback != "" && !isName(m.Fallback) {
		p.addf("fallback %q is no name of a policy", m.Fallback)
	}
	switch {
	case m.Fail != "" && m.Kind != Admission:
		p.addf("fail is for policies of kind admission; this one falls back to a native policy")
	case m.Fail != "" && m.Fail != "open" && m.Fail != "closed":
		p.addf(`fail is %q; it is "open" or "closed"`, m.Fail)
	}
}
