package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/wire/edge"
)

// ScalePolicies are what scale.policy takes: off, and the native policies, the default
// one first.
func ScalePolicies() []string {
	names := []string{ScaleOff}
	for _, p := range scale.Policies() {
		names = append(names, p.Name())
	}
	return names
}

// PoolLimit is one item of scale.pool.
type PoolLimit struct {
	scale.Key          // Model is empty for all
	Least, Most uint32 // Most 0 is no bound
}

// ParsePool reads [MODEL/]ROLE=MIN-MAX.
func ParsePool(raw string) (PoolLimit, error) {
	var p PoolLimit
	at := strings.LastIndexByte(raw, '=')
	if at < 0 {
		return p, fmt.Errorf("%q is not a pool such as llama/decode=1-4", raw)
	}
	role := raw[:at]
	if slash := strings.LastIndexByte(role, '/'); slash >= 0 {
		if p.Model, role = role[:slash], role[slash+1:]; p.Model == "" || len(p.Model) > edge.MaxModelName {
			return p, fmt.Errorf("%q: a model name has 1 to %d bytes", raw, edge.MaxModelName)
		}
	}
	var err error
	if p.Role, err = fleet.ParseRole(role); err != nil {
		return p, fmt.Errorf("%q: %w", raw, err)
	}
	least, most, ranged := strings.Cut(raw[at+1:], "-")
	if p.Least, err = replicas(least); err == nil && ranged && most != "" {
		if p.Most, err = replicas(most); err == nil && p.Most == 0 {
			err = errors.New("at most 0 workers make no pool: leave it out, and stop its workers")
		}
	}
	switch {
	case err != nil:
		return p, fmt.Errorf("%q: %w", raw, err)
	case !ranged:
		return p, fmt.Errorf("%q: fewest and most are missing: %s=1-4, or 1- for no bound", raw, raw[:at])
	case p.Most > 0 && p.Least > p.Most:
		return p, fmt.Errorf("%q: the fewest are more than the most", raw)
	}
	return p, nil
}

func replicas(raw string) (uint32, error) {
	n, err := strconv.ParseUint(raw, 10, 32)
	if err != nil || n > scale.MaxReplicas {
		return 0, fmt.Errorf("%q is not a number of workers, 0 to %d", raw, scale.MaxReplicas)
	}
	return uint32(n), nil
}

func pools(place *[]string) value {
	return list(place, "POOL=MIN-MAX", func(raw string) error {
		_, err := ParsePool(raw)
		return err
	})
}

// Limits is what the settings allow of a pool. One that is named with its model comes
// before one that is named by role alone; a pool of which nothing is said keeps at
// least one worker.
func (s Scale) Limits(key scale.Key) scale.Limits {
	out := scale.Limits{Least: 1}
	for _, exact := range []bool{false, true} {
		for _, raw := range s.Pools {
			if p, err := ParsePool(raw); err == nil && p.Role == key.Role && (p.Model == "" && !exact || p.Model == key.Model && exact) {
				out.Least, out.Most = p.Least, p.Most
			}
		}
	}
	if key.Role&fleet.RolePrefill != 0 {
		out.First = s.TTFT
	}
	if key.Role&fleet.RoleDecode != 0 {
		out.Between = s.ITL
	}
	return out
}

// Named are the pools that the settings name with their model: they are there though
// nobody serves in them.
func (s Scale) Named() (out []scale.Key) {
	for _, raw := range s.Pools {
		if p, err := ParsePool(raw); err == nil && p.Model != "" {
			out = append(out, p.Key)
		}
	}
	return out
}

// check looks at what depends on one another.
func (s Scale) check(faults *problems, w *Worker) {
	seen, least := map[scale.Key]bool{}, uint64(0)
	for _, raw := range s.Pools {
		p, err := ParsePool(raw)
		if err != nil {
			continue // it was said
		}
		if seen[p.Key] {
			faults.add("", "scale.pool names %s twice", strings.TrimPrefix(p.String(), "/"))
		}
		seen[p.Key] = true
		least += uint64(p.Least)
	}
	if s.Budget > 0 && least > uint64(s.Budget) {
		faults.add("", "scale.pool wants %d workers at least, more than scale.budget (%d)", least, s.Budget)
	}
	if s.Actuator == "process" && s.On() && w.ServedName == "" {
		faults.add("", "scale.actuator: process needs worker.served-name: it tells which pools the workers it starts are of")
	}
}
