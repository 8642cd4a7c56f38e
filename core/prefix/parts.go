package prefix

import "sync/atomic"

// parts are equal parts of the index's memory as they were at one moment. The
// writer keeps a copy of a part before it first changes it. The reader takes that
// copy or, where there is none, the part itself: it copies the part first and looks
// for a kept copy then, so that what it copied is whole unless there is one. Neither
// waits for the other.
type parts struct {
	words int // of a part
	kept  []atomic.Pointer[keptRun]
	read  atomic.Uint32 // parts before this one have been read: no need to keep them

	spare  atomic.Pointer[spares] // from the reader, who has time
	spared []*[]uint64            // the writer's
}

// spares are parts to keep copies in. They make a list.
type spares struct {
	parts []*[]uint64
	next  *spares
}

const (
	partsRun    = 64
	sparesGiven = 256 // new ones, when the writer has none
	sparesTaken = 16  // new ones that the writer makes itself
	pagesASpare = 128 // of an index, for each spare that waits for the next image
)

// keptRun is where the copies of successive parts are, if they were kept.
type keptRun [partsRun]atomic.Pointer[[]uint64]

// newParts is n parts of words words each, of which nothing is kept. The spares
// are the writer's.
func newParts(n, words int, spared []*[]uint64) *parts {
	return &parts{words: words, kept: make([]atomic.Pointer[keptRun], (n+partsRun-1)/partsRun), spared: spared}
}

// keep is called by the writer before it changes part n, of which live is the
// memory.
func (p *parts) keep(n uint32, live []uint64) {
	at, i := n/partsRun, n%partsRun
	if int(at) >= len(p.kept) || n < p.read.Load() {
		return
	}
	run := p.kept[at].Load()
	if run == nil {
		run = new(keptRun)
		p.kept[at].Store(run)
	}
	if run[i].Load() == nil {
		to := p.take()
		copy(*to, live)
		run[i].Store(to)
	}
}

// copyOf is the copy of part n, or nil.
func (p *parts) copyOf(n uint32) *[]uint64 {
	run := p.kept[n/partsRun].Load()
	if run == nil {
		return nil
	}
	return run[n%partsRun].Load()
}

// take is a part to keep a copy in.
func (p *parts) take() *[]uint64 {
	if len(p.spared) == 0 && len(p.left()) == 0 {
		p.spared = room(sparesTaken, p.words)
	}
	return pop(&p.spared)
}

// left is all spares that there are. They remain the writer's.
func (p *parts) left() []*[]uint64 {
	for s := p.spare.Swap(nil); s != nil; s = s.next {
		p.spared = append(p.spared, s.parts...)
	}
	return p.spared
}

// room is n parts of words words each, for which the system has found memory:
// whoever writes them waits for none.
func room(n, words int) []*[]uint64 {
	all, each, out := make([]uint64, n*words), make([][]uint64, n), make([]*[]uint64, n)
	clear(all)
	for i := range out {
		each[i] = all[i*words : (i+1)*words : (i+1)*words]
		out[i] = &each[i]
	}
	return out
}

// reader reads the parts one after the other.
type reader struct {
	*parts
	done []*[]uint64 // kept copies that have been read
}

// take copies part n, of which live is the memory, to dst. Parts before n are read
// no more.
func (r *reader) take(n uint32, live, dst []uint64) {
	if r.copyOf(n) == nil {
		for i := range dst {
			dst[i] = atomic.LoadUint64(&live[i])
		}
	}
	if kept := r.copyOf(n); kept != nil {
		copy(dst, *kept)
		r.done = append(r.done, kept)
	}
	r.read.Store(n + 1)
}

// giveBack lets the writer have the kept copies that were read, or new memory: it
// finds some whenever it has none left.
func (r *reader) giveBack() {
	given := &spares{parts: r.done, next: r.spare.Load()}
	if given.next == nil && len(r.done) == 0 {
		given.parts = room(sparesGiven, r.words)
	}
	if len(given.parts) == 0 {
		return
	}
	for !r.spare.CompareAndSwap(given.next, given) {
		given.next = r.spare.Load()
	}
	r.done = nil
}
