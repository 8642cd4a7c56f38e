//go:build !linux

package prefix

// hugeMemory comes from the Go heap: there are no huge pages to ask for.
func hugeMemory() func() Memory { return func() Memory { return new(plainMemory) } }

// plainMemory spoils what was given back.
type plainMemory struct{ pieces [][]uint64 }

func (m *plainMemory) Words(n int) []uint64 {
	piece := make([]uint64, n)
	m.pieces = append(m.pieces, piece)
	return piece
}

func (m *plainMemory) Free() {
	for _, piece := range m.pieces {
		clear(piece)
	}
	m.pieces = nil
}
