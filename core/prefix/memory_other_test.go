//go:build !linux

package prefix

import (
	"runtime"
	"sync"
)

// hugeMemory comes from the Go heap: there are no huge pages to ask for.
func hugeMemory() func(*Index) Memory {
	return func(x *Index) Memory {
		m := &plainMemory{}
		runtime.AddCleanup(x, (*plainMemory).Free, m)
		return m
	}
}

// plainMemory spoils what was given back.
type plainMemory struct {
	mu     sync.Mutex
	pieces [][]uint64
}

func (m *plainMemory) Words(n int) []uint64 {
	piece := make([]uint64, n)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pieces = append(m.pieces, piece)
	return piece
}

func (m *plainMemory) Free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, piece := range m.pieces {
		clear(piece)
	}
	m.pieces = nil
}
