package prefix

// sweep takes retired slots out of the tables, a few pages at a time. A round
// visits every page once for the slots retired before it began; pages written
// meanwhile are clean, because copying leaves retired holders out.
type sweep struct {
	retired []bool   // by slot
	waiting []uint16 // retired since the round began
	round   []uint16 // the slots of this round
	cursor  uint32   // next page
}

func (s *sweep) add(slot uint16) {
	s.retired[slot] = true
	s.waiting = append(s.waiting, slot)
}

func (s *sweep) busy() bool { return len(s.waiting)+len(s.round) > 0 }

// Sweep frees memory of detached and cleared workers, visiting at most pages
// pages (128 blocks each), and reports whether anything is left to do. Where
// replicas must stay equal it belongs to the sequence of writes: call it with
// the same argument at the same places in the log.
func (x *Index) Sweep(pages int) (more bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweepPages(pages)
	x.account()
	return x.sweeping.busy()
}

// sweepPages visits at most that many pages, one round at the most.
func (x *Index) sweepPages(pages int) {
	s := &x.sweeping
	if len(s.round) == 0 {
		if len(s.waiting) == 0 {
			return
		}
		s.round, s.waiting, s.cursor = s.waiting, nil, 0
	}
	for ; pages > 0 && s.cursor < x.pages.used; pages-- {
		x.scrubPage(s.cursor)
		s.cursor++
	}
	if s.cursor < x.pages.used {
		return
	}
	for _, slot := range s.round {
		s.retired[slot] = false
		x.freeSlots = append(x.freeSlots, slot)
	}
	s.round = nil
}

func (x *Index) scrubPage(n uint32) {
	if !x.meta[n].inUse {
		return
	}
	x.touch(n)
	p := page(*x.pages.chunks.Load(), n)
	p.eachLive(func(at int) { x.scrub(n, p, at) })
}

// scrub takes retired holders from the block at p[at] and reports whether it
// has a holder left; without one the slot is deleted.
func (x *Index) scrub(n uint32, p *pageMem, at int) (held bool) {
	var gone []uint16
	x.eachHolder(p, at, func(s uint16) {
		if x.sweeping.retired[s] {
			gone = append(gone, s)
		}
	})
	for _, s := range gone {
		if x.removeHolder(p, at, s) {
			x.deleteSlot(n, p, at)
			return false
		}
	}
	return true
}
