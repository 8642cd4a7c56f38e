package hub

import (
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/load"
	"github.com/yardmaster/yardmaster/core/traffic"
	"github.com/yardmaster/yardmaster/core/wire/hub"
)

// fromVector makes m say v. They share the columns.
func fromVector(v *load.Vector, m *hub.Loads) *hub.Loads {
	m.Whole, m.Epoch = v.Whole, v.Epoch
	m.Prefill, m.Decode, m.Prompt, m.Context = v.Prefill, v.Decode, v.Prompt, v.Context
	return m
}

// toVector reads what m says; errors wrap load.ErrVector. They share the columns.
func toVector(m *hub.Loads, gateways int) (load.Vector, error) {
	v := load.Vector{
		Whole: m.GetWhole(), Epoch: m.GetEpoch(),
		Prefill: m.GetPrefill(), Decode: m.GetDecode(), Prompt: m.GetPrompt(), Context: m.GetContext(),
	}
	return v, v.Validate(gateways)
}

// oldest bounds the age of a sample on the wire.
const oldest = time.Hour

// addSample appends what a worker said, as of now, to m.
func addSample(m *hub.Samples, s *fleet.Sample, now time.Time) {
	var known uint32
	number := func(column []float64, bit uint, r fleet.Reading) []float64 {
		if !r.Known {
			return append(column, 0)
		}
		known |= 1 << bit
		return append(column, r.Value)
	}
	m.Epoch = append(m.Epoch, uint64(s.Epoch))
	m.AgeUs = append(m.AgeUs, uint64(min(max(now.Sub(s.At), 0), oldest).Microseconds()))
	m.Running = number(m.Running, 0, s.Stats.Running)
	m.Waiting = number(m.Waiting, 1, s.Stats.Waiting)
	m.KvBlocksFree = number(m.KvBlocksFree, 2, s.Stats.KVBlocksFree)
	m.PrefillTokensPerS = number(m.PrefillTokensPerS, 3, s.Stats.PrefillTokensPerSecond)
	m.DecodeStepS = number(m.DecodeStepS, 4, s.Stats.DecodeStepSeconds)
	m.Known = append(m.Known, known)
}

// emptySamples takes the rows out of m and keeps their memory.
func emptySamples(m *hub.Samples) {
	m.Epoch, m.AgeUs, m.Known = m.Epoch[:0], m.AgeUs[:0], m.Known[:0]
	m.Running, m.Waiting, m.KvBlocksFree = m.Running[:0], m.Waiting[:0], m.KvBlocksFree[:0]
	m.PrefillTokensPerS, m.DecodeStepS = m.PrefillTokensPerS[:0], m.DecodeStepS[:0]
}

// checkSamples reports what makes received samples unusable; errors wrap
// load.ErrVector.
func checkSamples(m *hub.Samples) error {
	n := len(m.GetEpoch())
	if n > load.MaxWorkers {
		return fmt.Errorf("%w: %d samples, at most %d", load.ErrVector, n, load.MaxWorkers)
	}
	for _, length := range [...]int{
		len(m.GetAgeUs()), len(m.GetKnown()), len(m.GetRunning()), len(m.GetWaiting()),
		len(m.GetKvBlocksFree()), len(m.GetPrefillTokensPerS()), len(m.GetDecodeStepS()),
	} {
		if length != n {
			return fmt.Errorf("%w: a column of %d samples has %d numbers", load.ErrVector, n, length)
		}
	}
	for i, age := range m.GetAgeUs() {
		if age > uint64(oldest.Microseconds()) || m.Epoch[i] == 0 {
			return fmt.Errorf("%w: a sample of epoch %d, %d µs old", load.ErrVector, m.Epoch[i], age)
		}
	}
	return nil
}

// statsAt is row i of m, which was checked.
func statsAt(m *hub.Samples, i int) fleet.Stats {
	reading := func(column []float64, bit uint) fleet.Reading {
		if m.Known[i]&(1<<bit) == 0 {
			return fleet.Reading{}
		}
		return fleet.Report(column[i])
	}
	return fleet.Stats{
		Running: reading(m.Running, 0), Waiting: reading(m.Waiting, 1), KVBlocksFree: reading(m.KvBlocksFree, 2),
		PrefillTokensPerSecond: reading(m.PrefillTokensPerS, 3), DecodeStepSeconds: reading(m.DecodeStepS, 4),
	}
}

// fromTotals is what changed of a gateway's traffic, on the wire. It shares the
// histograms.
func fromTotals(news []traffic.Totals) *hub.Traffic {
	m := &hub.Traffic{Models: make([]*hub.Totals, len(news))}
	for i := range news {
		t := &news[i]
		m.Models[i] = &hub.Totals{
			Model: t.Model, Arrivals: t.Arrivals, Prompt: t.Prompt, Cached: t.Cached, Output: t.Output, Waiting: t.Waiting,
			First: t.First, Between: t.Between,
		}
	}
	return m
}

// toTotals reads what m says; errors wrap traffic.ErrReport. They share the
// histograms.
func toTotals(m *hub.Traffic) ([]traffic.Totals, error) {
	if len(m.GetModels()) > traffic.MaxModels {
		return nil, fmt.Errorf("%w: %d models, at most %d", traffic.ErrReport, len(m.GetModels()), traffic.MaxModels)
	}
	out := make([]traffic.Totals, len(m.GetModels()))
	for i, t := range m.GetModels() {
		out[i] = traffic.Totals{
			Model: t.GetModel(), Arrivals: t.GetArrivals(), Prompt: t.GetPrompt(), Cached: t.GetCached(), Output: t.GetOutput(),
			Waiting: t.GetWaiting(), First: t.GetFirst(), Between: t.GetBetween(),
		}
		if err := out[i].Validate(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
