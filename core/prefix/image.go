package prefix

import "slices"

// image is an index as it was at one moment, read while the writer goes on. What
// is small is copied when it is taken; a page, or a chunk of rows, is copied when
// it is read, or before the writer first changes it. It holds the memory layout, not only the
// pairs: what a full index forgets next depends on it, and replicas must forget
// alike.
type image struct {
	x    *Index
	next uint32 // pages before this one have been read
	meta []pageMeta
	kept map[uint32]*pageMem // as they were, not yet read

	budget    int64
	words     int // of a row
	dir       *directory
	freePages []uint32

	slotOf      []uint16
	identity    []uint64
	freeWorkers []Worker
	freeSlots   []uint16
	waiting     []uint16
	round       []uint16
	cursor      uint32

	rowsNext  uint32              // chunks of rows before this one have been read
	rowsKept  map[uint32][]uint64 // chunks as they were, not yet read
	rowsUsed  uint32
	freeRows  []uint32
	forgotten int64
}

// capture takes an image. The caller releases it.
func (x *Index) capture() *image {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.dir.Load()
	im := &image{
		x: x, meta: slices.Clone(x.meta), kept: map[uint32]*pageMem{}, rowsKept: map[uint32][]uint64{},
		budget: x.budget, words: x.rows.words,
		dir:       &directory{runs: d.runs, entries: slices.Clone(d.entries)},
		freePages: slices.Clone(x.pages.free),
		slotOf:    slices.Clone(x.slotOf), identity: slices.Clone(x.identity),
		freeWorkers: slices.Clone(x.freeWorkers), freeSlots: slices.Clone(x.freeSlots),
		waiting: slices.Clone(x.sweeping.waiting), round: slices.Clone(x.sweeping.round), cursor: x.sweeping.cursor,
		rowsUsed: x.rows.used, freeRows: slices.Clone(x.rows.free), forgotten: x.forgotten.Load(),
	}
	x.images = append(x.images, im)
	return im
}

// release lets the writer go on without copying. Releasing twice is harmless.
func (im *image) release() {
	x := im.x
	x.mu.Lock()
	defer x.mu.Unlock()
	x.images = slices.DeleteFunc(x.images, func(other *image) bool { return other == im })
	im.kept, im.rowsKept = nil, nil
}

// touch is called before page n is changed.
func (x *Index) touch(n uint32) {
	for _, im := range x.images {
		im.keep(n)
	}
}

func (im *image) keep(n uint32) {
	if n < im.next || int(n) >= len(im.meta) || !im.meta[n].inUse || im.kept[n] != nil {
		return
	}
	p := *page(*im.x.pages.chunks.Load(), n)
	im.kept[n] = &p
}

// touchRow is called before row n is changed.
func (x *Index) touchRow(n uint32) {
	for _, im := range x.images {
		im.keepRows(n / chunkRows)
	}
}

func (im *image) keepRows(chunk uint32) {
	if chunk < im.rowsNext || chunk*chunkRows >= im.rowsUsed || im.rowsKept[chunk] != nil {
		return
	}
	im.rowsKept[chunk] = slices.Clone((*im.x.rows.chunks.Load())[chunk])
}

// readRows puts the next chunk of rows into dst, which has its size.
func (im *image) readRows(dst []uint64) {
	im.x.mu.Lock()
	defer im.x.mu.Unlock()
	from := im.rowsKept[im.rowsNext]
	if from == nil {
		from = (*im.x.rows.chunks.Load())[im.rowsNext]
	}
	copy(dst, from)
	delete(im.rowsKept, im.rowsNext)
	im.rowsNext++
}

// numberedPage is a page of an image.
type numberedPage struct {
	n    uint32
	page pageMem
}

// read appends the next pages in use to dst, as many as its capacity holds. It
// returns none at the end.
func (im *image) read(dst []numberedPage) []numberedPage {
	im.x.mu.Lock()
	defer im.x.mu.Unlock()
	chunks := *im.x.pages.chunks.Load()
	for ; int(im.next) < len(im.meta) && len(dst) < cap(dst); im.next++ {
		n := im.next
		if !im.meta[n].inUse {
			continue
		}
		p := im.kept[n]
		if p == nil {
			p = page(chunks, n)
		}
		dst = append(dst, numberedPage{n, *p})
		delete(im.kept, n)
	}
	return dst
}

// freeRow reports which rows are free.
func (im *image) freeRow() []bool {
	free := make([]bool, im.rowsUsed)
	for _, n := range im.freeRows {
		free[n] = true
	}
	return free
}
