package fleet

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Reading is one number a worker reported. Three states differ: not reported
// (Known is false), reported as a number, zero included, and reported as NaN or
// infinity, which is a broken gauge and not a load of zero.
type Reading struct {
	Value float64
	Known bool
}

// Report is a reading of v.
func Report(v float64) Reading { return Reading{Value: v, Known: true} }

// Usable returns the value if it is known and finite.
func (r Reading) Usable() (v float64, ok bool) {
	if !r.Known || math.IsNaN(r.Value) || math.IsInf(r.Value, 0) {
		return 0, false
	}
	return r.Value, true
}

// Stats is what a worker says of its engine at one instant.
type Stats struct {
	Running                Reading // requests being computed
	Waiting                Reading // requests accepted and not started
	KVBlocksFree           Reading // blocks a new request can take
	PrefillTokensPerSecond Reading // measured rate
	DecodeStepSeconds      Reading // seconds per decode step
}

// Sample is the last word of one incarnation about itself. It was not agreed
// on by Raft and may be old: At says when it arrived.
type Sample struct {
	ID    WorkerID
	Epoch Epoch
	Stats Stats
	At    time.Time
}

// Samples is an immutable set of samples, ordered by worker.
type Samples struct{ byID []Sample }

// NewSamples takes ownership of list, which holds one sample per worker.
func NewSamples(list []Sample) *Samples {
	slices.SortFunc(list, func(a, b Sample) int { return cmp.Compare(a.ID, b.ID) })
	return &Samples{byID: list}
}

// All lists the samples by worker id. Do not modify it.
func (s *Samples) All() []Sample {
	if s == nil {
		return nil
	}
	return s.byID
}

// Find returns the sample of that incarnation. What another epoch of the same
// worker said is not found.
func (s *Samples) Find(id WorkerID, epoch Epoch) (Sample, bool) {
	all := s.All()
	i, ok := slices.BinarySearchFunc(all, id, func(x Sample, id WorkerID) int { return cmp.Compare(x.ID, id) })
	if !ok || all[i].Epoch != epoch {
		return Sample{}, false
	}
	return all[i], true
}
