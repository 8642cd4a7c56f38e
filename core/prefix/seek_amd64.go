//go:build !race

package prefix

import (
	"sync/atomic"
	"unsafe"
)

// In Go the two take half as long again, and nothing in it asks for memory
// without waiting for it. Their loads are those of [plainTags] and [plainSlots]; on
// this processor a plain load is an atomic one, and loads are not reordered.

//go:noescape
func findTags(keys *Hash, n int, d *directory, cells *cellMap, chunks *atomic.Pointer[[]*chunk], tags *tagBatch)

//go:noescape
func findSlots(keys *Hash, n int, tags *tagBatch, slots *slotBatch)

// fetch asks for the memory of the slots.
//
//go:noescape
func fetch(slots *slotBatch)

// What the assembly takes for granted; where it is not so this does not compile.
const (
	_ = -unsafe.Offsetof(directory{}.runs)
	_ = -(unsafe.Offsetof(directory{}.entries) ^ 512)
	_ = -(unsafe.Sizeof(run{}) ^ 8)
	_ = -(unsafe.Offsetof(run{}.depth) ^ 4)
	_ = uint(-(cellBits ^ 12) - (chunkPages ^ 64) - (pageWords ^ 512))
	_ = uint(-(pageGroups ^ 20) - (groupSlots ^ 8) - (slotsAt ^ 32) - (slotWords ^ 3) - (batch ^ 16))
)
