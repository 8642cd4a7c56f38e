package planner

import "slices"

// windowSize is how many request ids are remembered. It belongs to the state:
// changing it needs a new entry version, or replicas would disagree on what is
// a repetition.
const windowSize = 4096

// window remembers the results of the last requests, oldest first out. It is
// replicated state: membership depends on the log alone. The zero value is
// empty.
type window struct {
	byID map[RequestID]int32 // place in ring; looked up, never ranged over
	ring []remembered        // in order of arrival, a ring once full
	next int                 // the oldest in a full ring
}

type remembered struct {
	id  RequestID
	res Result
}

func (w *window) find(id RequestID) (Result, bool) {
	if i, ok := w.byID[id]; ok {
		return w.ring[i].res, true
	}
	return Result{}, false
}

// add remembers a request that find does not know. The zero id is none.
func (w *window) add(id RequestID, res Result) {
	if id == (RequestID{}) {
		return
	}
	if w.byID == nil {
		w.byID = map[RequestID]int32{}
	}
	if len(w.ring) < windowSize {
		w.byID[id] = int32(len(w.ring))
		w.ring = append(w.ring, remembered{id, res})
		return
	}
	delete(w.byID, w.ring[w.next].id)
	w.byID[id] = int32(w.next)
	w.ring[w.next] = remembered{id, res}
	w.next = (w.next + 1) % windowSize
}

// list copies the window, oldest first.
func (w *window) list() []remembered { return slices.Concat(w.ring[w.next:], w.ring[:w.next]) }
