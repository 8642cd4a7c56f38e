//go:build !linux

package hugemem

// mapping is never made here.
type mapping struct{}

// mapRegion maps nothing here: the Go heap serves.
func mapRegion(int) ([]uint64, mapping) { return nil, mapping{} }

func (mapping) unmap() {}
