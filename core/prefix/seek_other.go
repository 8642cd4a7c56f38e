//go:build !amd64 || race

package prefix

import "sync/atomic"

func findTags(keys *Hash, n int, d *directory, cells *cellMap, chunks *atomic.Pointer[[]*chunk], tags *tagBatch) {
	plainTags(keys, n, d, cells, chunks, tags)
}

func findSlots(keys *Hash, n int, tags *tagBatch, slots *slotBatch) {
	plainSlots(keys, n, tags, slots)
}

func fetch(*slotBatch) {}
