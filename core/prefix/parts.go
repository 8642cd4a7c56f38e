package prefix

import "sync/atomic"

// parts are equal parts of the index's memory as they were at one moment. The
// writer keeps a copy of a part before it first changes it. The reader takes that
// copy or, where there is none, the part itself: it copies the part first and looks
// for a kept copy then, so that what it copied is whole unless there is one. Neither
// waits for the other.
type parts struct {
	n     uint32 // how many
	words int    // of a part
	kept  []atomic.Pointer[keptRun]
	read  atomic.Uint32 // parts before this one have been read: no need to keep them

	handed atomic.Pointer[spares] // from the reader, who has time, to the writer
	own    []*[]uint64            // the writer's
}

// spares are parts to keep copies in, and further ones.
type spares struct {
	parts []*[]uint64
	next  *spares
}

const (
	keptRunParts = 64
	handedBytes  = 1 << 20 // of new spares, when there are no others to hand over
	ownBytes     = 1 << 16 // of new spares that the writer makes when it finds none
)

// keptRun is where the copies of successive parts are, if they were kept.
type keptRun [keptRunParts]atomic.Pointer[[]uint64]

// newParts is n parts of words words each, of which nothing is kept. The spares
// are the writer's.
func newParts(n, words int, spares []*[]uint64) *parts {
	return &parts{n: uint32(n), words: words, kept: make([]atomic.Pointer[keptRun], (n+keptRunParts-1)/keptRunParts), own: spares}
}

// keep is called by the writer before it changes part n, of which live is the
// memory.
func (p *parts) keep(n uint32, live []uint64) {
	if n >= p.n || n < p.read.Load() {
		return
	}
	run := p.kept[n/keptRunParts].Load()
	if run == nil {
		run = new(keptRun)
		p.kept[n/keptRunParts].Store(run)
	}
	if at := &run[n%keptRunParts]; at.Load() == nil {
		to := p.spare()
		copy(*to, live)
		at.Store(to)
	}
}

// copyOf is the copy of part n, or nil.
func (p *parts) copyOf(n uint32) *[]uint64 {
	run := p.kept[n/keptRunParts].Load()
	if run == nil {
		return nil
	}
	return run[n%keptRunParts].Load()
}

// spare is a part to keep a copy in.
func (p *parts) spare() *[]uint64 {
	if len(p.own) == 0 {
		for s := p.handed.Swap(nil); s != nil; s = s.next {
			p.own = append(p.own, s.parts...)
		}
	}
	if len(p.own) == 0 {
		p.own = newSpares(ownBytes, p.words)
	}
	return pop(&p.own)
}

// newSpares is parts of words words each, of about so many bytes together, for which
// the system has found memory: whoever writes them waits for none. They are one piece
// of memory, which is quickly made and collected, and as long there as one of them is.
func newSpares(bytes, words int) []*[]uint64 {
	n := max(1, bytes/(8*words))
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

// copy copies part n, of which live is the memory, to dst. Parts before n are read
// no more.
func (r *reader) copy(n uint32, live, dst []uint64) {
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

// handOver lets the writer have the kept copies that were read, or new memory when
// there are none and it has taken all that was handed over before.
func (r *reader) handOver() {
	s := &spares{parts: r.done, next: r.handed.Load()}
	switch {
	case len(r.done) > 0:
	case s.next == nil:
		s.parts = newSpares(handedBytes, r.words)
	default:
		return
	}
	for !r.handed.CompareAndSwap(s.next, s) {
		s.next = r.handed.Load()
	}
	r.done = nil
}
