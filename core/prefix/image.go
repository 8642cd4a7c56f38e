package prefix

import "slices"

// image is an index as it was at one moment, read while the writer goes on. What
// is small is copied when it is taken; pages, and chunks of rows, are [parts]. It
// holds the memory layout, not only the pairs: what a full index forgets next
// depends on it, and replicas must forget alike.
type image struct {
	x     *Index
	meta  []pageMeta
	pages *parts
	rows  *parts // chunks of them

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
		x: x, meta: slices.Clone(x.meta),
		pages: newParts(len(x.meta), pageWords, x.spares), rows: newParts(x.rows.chunksUsed(), chunkRows*x.rows.words, nil),
		budget: x.budget, words: x.rows.words,
		dir:       &directory{runs: d.runs, entries: slices.Clone(d.entries)},
		freePages: slices.Clone(x.pages.free),
		slotOf:    slices.Clone(x.slotOf), identity: slices.Clone(x.identity),
		freeWorkers: slices.Clone(x.freeWorkers), freeSlots: slices.Clone(x.freeSlots),
		waiting: slices.Clone(x.sweeping.waiting), round: slices.Clone(x.sweeping.round), cursor: x.sweeping.cursor,
		rowsUsed: x.rows.used, freeRows: slices.Clone(x.rows.free), forgotten: x.forgotten.Load(),
	}
	x.spares = nil
	x.images = append(x.images, im)
	return im
}

// release lets the writer go on without copying, and has spares ready for the next
// image. Releasing twice is harmless.
func (im *image) release() {
	x := im.x
	x.mu.Lock()
	i := slices.Index(x.images, im)
	if i >= 0 {
		x.images = slices.Delete(x.images, i, i+1)
		im.pages, im.rows = nil, nil
	}
	wanted := x.sparesWanted()
	x.mu.Unlock()
	if i < 0 || wanted == 0 {
		return
	}
	spares := newSpares(wanted*pageWords*8, pageWords) // nobody waits for it
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spares = spares
}

// sparesWanted is how many pages the writer should have ready to keep copies in when
// an image is taken: just then all that it changes is to be kept.
func (x *Index) sparesWanted() int {
	if !x.imaged {
		return 0
	}
	return int(x.pages.used) / pagesASpare
}

// pagesASpare is the pages of an index for each spare that waits for the next image.
const pagesASpare = 128

// stock makes the spares that the index should have by its size.
func (x *Index) stock() {
	if n := x.sparesWanted() - len(x.spares); n > 0 && len(x.images) == 0 {
		x.spares = append(x.spares, newSpares(n*pageWords*8, pageWords)...)
	}
}

// touch is called before page n is changed.
func (x *Index) touch(n uint32) {
	for _, im := range x.images {
		if int(n) < len(im.meta) && im.meta[n].inUse {
			im.pages.keep(n, x.pageWords(n))
		}
	}
}

// touchRow is called before row n is changed.
func (x *Index) touchRow(n uint32) {
	for _, im := range x.images {
		im.rows.keep(n/chunkRows, x.rowWords(n/chunkRows))
	}
}

func (x *Index) pageWords(n uint32) []uint64 { return page(*x.pages.chunks.Load(), n)[:] }

func (x *Index) rowWords(chunk uint32) []uint64 { return (*x.rows.chunks.Load())[chunk] }

// freeRow reports which rows are free.
func (im *image) freeRow() []bool {
	free := make([]bool, im.rowsUsed)
	for _, n := range im.freeRows {
		free[n] = true
	}
	return free
}
