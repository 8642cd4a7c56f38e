package vet

import (
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"
)

// baseMillis is the time at which dry runs begin.
const baseMillis = 1_800_000_000_000

// mostKeys bounds the state of a guest under trial, as the real one is.
const mostKeys = 1024

// services are those of a dry run: they answer the same in both engines and remember
// a hash of what was asked.
type services struct {
	now    int64
	hash   *xxhash.Digest
	states [2]map[string][]byte // of the node and of the cluster
}

func newServices() *services {
	return &services{now: baseMillis, hash: xxhash.New(), states: [2]map[string][]byte{{}, {}}}
}

// step lets a second go by.
func (s *services) step() { s.now += 1000 }

func (s *services) sum() uint64 { return s.hash.Sum64() }

func (s *services) note(what byte, numbers []uint64, bytes ...[]byte) {
	b := []byte{what}
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, more := range bytes {
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(more))), more...)
	}
	_, _ = s.hash.Write(b) // it cannot fail
}

func (s *services) state(replicated bool) map[string][]byte {
	if replicated {
		return s.states[1]
	}
	return s.states[0]
}

// Log notes a line.
func (s *services) Log(_ string, level int, line []byte) { s.note('l', []uint64{uint64(level)}, line) }

// Count notes a number.
func (s *services) Count(_ string, counter int, n int64) {
	s.note('c', []uint64{uint64(counter), uint64(n)})
}

// Observe notes a value.
func (s *services) Observe(_ string, histogram int, v float64) {
	bits := math.Float64bits(v)
	if math.IsNaN(v) {
		bits = math.Float64bits(math.NaN())
	}
	s.note('o', []uint64{uint64(histogram), bits})
}

// NowMillis is the time of the dry run.
func (s *services) NowMillis() int64 { return s.now }

// Get reads state.
func (s *services) Get(_ string, replicated bool, key, buf []byte) int {
	v, ok := s.state(replicated)[string(key)]
	if !ok {
		return -1
	}
	copy(buf, v)
	return len(v)
}

// Set writes state, as far as there is room.
func (s *services) Set(_ string, replicated bool, key, value []byte) bool {
	s.note('s', nil, key, value)
	state := s.state(replicated)
	if _, ok := state[string(key)]; !ok && len(state) >= mostKeys {
		return false
	}
	state[string(key)] = append([]byte(nil), value...)
	return true
}

// Add adds to a number of eight bytes, little-endian.
func (s *services) Add(_ string, replicated bool, key []byte, delta int64) (int64, bool) {
	s.note('a', []uint64{uint64(delta)}, key)
	state := s.state(replicated)
	old, ok := state[string(key)]
	if !ok && len(state) >= mostKeys || ok && len(old) != 8 {
		return 0, false
	}
	sum := delta
	if ok {
		sum += int64(binary.LittleEndian.Uint64(old))
	}
	state[string(key)] = binary.LittleEndian.AppendUint64(nil, uint64(sum))
	return sum, true
}
