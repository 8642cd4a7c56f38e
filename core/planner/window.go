package planner

import "slices"

// windowSize is how many request ids are remembered. It belongs to the state:
// changing it needs a new entry version, or replicas would disagree on what is
// a repetition.
const windowSize = 4096

// window remembers the results of the last requests, oldest out first. It is
// replicated state: membership depends on the log alone. The zero value is
// empty.
type window struct {
	byID map[RequestID]Result // looked up, never ranged over
	ring []RequestID          // insertion order, a ring once full
	next int                  // the oldest in a full ring
}

func (w *window) find(id RequestID) (Result, bool) {
	if id == (RequestID{}) {
		return Result{}, false
	}
	res, ok := w.byID[id]
	return res, ok
}

func (w *window) add(id RequestID, res Result) {
	if id == (RequestID{}) {
		return
	}
	if w.byID == nil {
		w.byID = map[RequestID]Result{}
	}
	w.byID[id] = res
	if len(w.ring) < windowSize {
		w.ring = append(w.ring, id)
		return
	}
	delete(w.byID, w.ring[w.next])
	w.ring[w.next] = id
	w.next = (w.next + 1) % windowSize
}

type remembered struct {
	id  RequestID
	res Result
}

// list copies the window, oldest first.
func (w *window) list() []remembered {
	out := make([]remembered, 0, len(w.ring))
	for _, id := range slices.Concat(w.ring[w.next:], w.ring[:w.next]) {
		out = append(out, remembered{id, w.byID[id]})
	}
	return out
}
