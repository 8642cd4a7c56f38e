package scripted

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// playbook is a script in force: its rules and how often each has been met.
type playbook struct {
	script *Script
	mu     sync.Mutex
	met    []int // requests that met the rule's conditions
	acted  []int
}

// newPlaybook checks s and puts it in force. A nil script has no rules.
func newPlaybook(s *Script) (*playbook, error) {
	if s == nil {
		s = &Script{}
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &playbook{script: s, met: make([]int, len(s.Rules)), acted: make([]int, len(s.Rules))}, nil
}

// match finds the rule for x; the zero Action when none matches.
func (p *playbook) match(x *exchange) (Action, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.script.Rules {
		r := &p.script.Rules[i]
		if !r.Match.meets(x) {
			continue
		}
		p.met[i]++
		if r.Times > 0 && p.acted[i] >= r.Times || !r.Match.turn(p.met[i]) {
			continue
		}
		p.acted[i]++
		name := r.Name
		if name == "" {
			name = "rule " + strconv.Itoa(i+1)
		}
		return r.Do, name
	}
	return Action{}, ""
}

// meets reports whether x meets every condition but the count.
func (m *Match) meets(x *exchange) bool {
	switch {
	case m.Route != "" && !routeMatches(m.Route, x.r.URL.Path),
		m.Method != "" && m.Method != x.r.Method,
		m.Model != "" && m.Model != x.facts.Model,
		m.Body != "" && !strings.Contains(string(x.body), m.Body),
		m.Leg != "" && m.Leg != x.facts.leg.String(),
		m.Stream != nil && *m.Stream != x.facts.Stream:
		return false
	}
	for name, part := range m.Header {
		values := x.r.Header[http.CanonicalHeaderKey(name)]
		if !slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, part) }) {
			return false
		}
	}
	return true
}

// turn reports whether the nth request that meets the conditions is meant.
func (m *Match) turn(n int) bool {
	switch {
	case len(m.Nth) > 0:
		return slices.Contains(m.Nth, n)
	case m.Every > 0:
		return n%m.Every == 0
	}
	return true
}

func routeMatches(pattern, path string) bool {
	if rest, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, rest)
	}
	return pattern == path
}
