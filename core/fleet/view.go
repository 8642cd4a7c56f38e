package fleet

import (
	"cmp"
	"slices"
)

// View is the fleet at one Raft index. It is immutable: a change publishes a
// new View. Index i means the same worker in every column of one View, and
// nothing across Views; keep (WorkerID, Epoch) to remember a worker.
type View struct {
	Index   uint64   // Raft index it reflects
	Workers []Worker // by ID; do not modify
	models  map[string][]int32
	names   []string
}

// NewView builds a view of workers at index. It takes ownership of the slice.
func NewView(index uint64, workers []Worker) *View {
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.ID, b.ID) })
	v := &View{Index: index, Workers: workers, models: map[string][]int32{}}
	for i := range workers {
		for _, m := range workers[i].Models {
			if n := len(v.models[m]); n > 0 && v.models[m][n-1] == int32(i) {
				continue // the worker lists the model twice
			}
			v.models[m] = append(v.models[m], int32(i))
			v.names = append(v.names, m)
		}
	}
	slices.Sort(v.names)
	v.names = slices.Compact(v.names)
	return v
}

// Serving lists the workers that serve model, as indices into Workers,
// draining ones included. Do not modify it. It is nil for an unknown model.
func (v *View) Serving(model string) []int32 { return v.models[model] }

// Models lists the served model names in order. Do not modify it.
func (v *View) Models() []string { return v.names }

// Find returns the index of the worker with that id, or -1.
func (v *View) Find(id WorkerID) int {
	i, ok := slices.BinarySearchFunc(v.Workers, id, func(w Worker, id WorkerID) int { return cmp.Compare(w.ID, id) })
	if !ok {
		return -1
	}
	return i
}

// Current returns the index of that incarnation of the worker, or -1 when the
// worker is gone or is another incarnation by now.
func (v *View) Current(id WorkerID, epoch Epoch) int {
	i := v.Find(id)
	if i < 0 || v.Workers[i].Epoch != epoch {
		return -1
	}
	return i
}
