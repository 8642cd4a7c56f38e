package golden

import (
	"encoding/binary"

	"github.com/yardmaster/yardmaster/policies/abi"
)

// world is what a session offers a policy: a clock that stands, a state, and a record
// of what it was asked.
type world struct {
	now      int64
	state    [2]map[string]string // local, replicated
	written  [2]map[string]string
	counters map[int]int64
}

// mostKeys is how many keys a policy may have in a scope.
const mostKeys = 1024

func newWorld(s State) (*world, error) {
	w := &world{}
	for scope, from := range []map[string]string{s.Local, s.Replicated} {
		w.state[scope] = map[string]string{}
		for k, v := range from {
			key, err := untext(k)
			if err != nil {
				return nil, err
			}
			if w.state[scope][key], err = untext(v); err != nil {
				return nil, err
			}
		}
	}
	return w, nil
}

// begin forgets what the last call did, but for its state.
func (w *world) begin(now int64) {
	w.now = now
	w.written = [2]map[string]string{{}, {}}
	w.counters = map[int]int64{}
}

// show adds to an answer what the call did beside it.
func (w *world) show(m *abi.Manifest, got *Want) {
	for i, n := range w.counters {
		if got.Counters == nil {
			got.Counters = map[string]int64{}
		}
		got.Counters[m.Counters[i].Name] = n
	}
	if len(w.written[0]) > 0 {
		got.State.Local = w.written[0]
	}
	if len(w.written[1]) > 0 {
		got.State.Replicated = w.written[1]
	}
}

func scope(replicated bool) int {
	if replicated {
		return 1
	}
	return 0
}

// Log drops lines: a golden file holds decisions.
func (w *world) Log(string, int, []byte) {}

func (w *world) Count(_ string, counter int, n int64) { w.counters[counter] += n }
func (w *world) Observe(string, int, float64)         {}
func (w *world) NowMillis() int64                     { return w.now }

func (w *world) Get(_ string, replicated bool, key, buf []byte) int {
	v, ok := w.state[scope(replicated)][string(key)]
	if !ok {
		return -1
	}
	if len(v) <= len(buf) {
		copy(buf, v)
	}
	return len(v)
}

func (w *world) Set(_ string, replicated bool, key, value []byte) bool {
	at := w.state[scope(replicated)]
	if _, ok := at[string(key)]; !ok && len(at) >= mostKeys {
		return false
	}
	at[string(key)] = string(value)
	w.written[scope(replicated)][text(key)] = text(value)
	return true
}

func (w *world) Add(policy string, replicated bool, key []byte, delta int64) (int64, bool) {
	at := w.state[scope(replicated)]
	sum := delta
	if v := at[string(key)]; len(v) == 8 { // another value counts as 0
		sum += int64(binary.LittleEndian.Uint64([]byte(v)))
	}
	return sum, w.Set(policy, replicated, key, binary.LittleEndian.AppendUint64(nil, uint64(sum)))
}
