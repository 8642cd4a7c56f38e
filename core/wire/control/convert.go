package control

import (
	"fmt"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
)

// FromWorker is w as a message. Slices are copied.
func FromWorker(w *fleet.Worker) *Worker {
	m := &Worker{
		Id:          string(w.ID),
		Epoch:       uint64(w.Epoch),
		Incarnation: w.Incarnation,
		Role:        uint32(w.Role),
		Engine:      w.Engine,
		Models:      append([]string(nil), w.Models...),
		Url:         w.URL,
		Transfer:    w.Transfer,
		Compat:      w.Compat,
		Draining:    w.Draining,
	}
	if w.Capacity != (fleet.Capacity{}) {
		m.Capacity = &Capacity{
			KvBlocks:    int64(w.Capacity.KVBlocks),
			BlockTokens: int64(w.Capacity.BlockTokens),
			MaxContext:  int64(w.Capacity.MaxContext),
			MaxRunning:  int64(w.Capacity.MaxRunning),
		}
	}
	for _, l := range w.Labels {
		m.Labels = append(m.Labels, &Label{Key: l.Key, Value: l.Value})
	}
	return m
}

// ToWorker reads a worker out of m, which may be nil: it is then empty and
// fails validation. A role beyond what a fleet.Role can hold is an error; every
// other judgement is fleet.Worker.Validate's.
func ToWorker(m *Worker) (fleet.Worker, error) {
	role := m.GetRole()
	if role > uint32(^fleet.Role(0)) {
		return fleet.Worker{}, fmt.Errorf("role %d is not a set of phases", role)
	}
	c := m.GetCapacity()
	w := fleet.Worker{
		ID:          fleet.WorkerID(m.GetId()),
		Epoch:       fleet.Epoch(m.GetEpoch()),
		Incarnation: m.GetIncarnation(),
		Role:        fleet.Role(role),
		Engine:      m.GetEngine(),
		Models:      append([]string(nil), m.GetModels()...),
		URL:         m.GetUrl(),
		Transfer:    m.GetTransfer(),
		Compat:      m.GetCompat(),
		Draining:    m.GetDraining(),
		Capacity: fleet.Capacity{
			KVBlocks:    unit.Blocks(c.GetKvBlocks()),
			BlockTokens: unit.Tokens(c.GetBlockTokens()),
			MaxContext:  unit.Tokens(c.GetMaxContext()),
			MaxRunning:  int(c.GetMaxRunning()),
		},
	}
	for _, l := range m.GetLabels() {
		w.Labels = append(w.Labels, fleet.Label{Key: l.GetKey(), Value: l.GetValue()})
	}
	return w, nil
}

// FromStats is s as a message; what is not known stays absent.
func FromStats(s fleet.Stats) *Stats {
	return &Stats{
		Running:           fromReading(s.Running),
		Waiting:           fromReading(s.Waiting),
		KvBlocksFree:      fromReading(s.KVBlocksFree),
		PrefillTokensPerS: fromReading(s.PrefillTokensPerSecond),
		DecodeStepS:       fromReading(s.DecodeStepSeconds),
	}
}

// ToStats reads stats out of m, which may be nil: nothing is then known.
func ToStats(m *Stats) fleet.Stats {
	if m == nil {
		return fleet.Stats{}
	}
	return fleet.Stats{
		Running:                toReading(m.Running),
		Waiting:                toReading(m.Waiting),
		KVBlocksFree:           toReading(m.KvBlocksFree),
		PrefillTokensPerSecond: toReading(m.PrefillTokensPerS),
		DecodeStepSeconds:      toReading(m.DecodeStepS),
	}
}

func fromReading(r fleet.Reading) *float64 {
	if !r.Known {
		return nil
	}
	return &r.Value
}

func toReading(v *float64) fleet.Reading {
	if v == nil {
		return fleet.Reading{}
	}
	return fleet.Reading{Value: *v, Known: true}
}
