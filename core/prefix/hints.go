package prefix

// hints remember where the blocks of earlier chains stood, so that a chain that
// begins as an earlier one did is compared without looking for its blocks. They
// may be wrong: a slot is believed only if it holds the key it was remembered
// for, and no page that is out of use holds a key ([Index.freePage]).
//
// They are kept by batch, under the batch's last block, whose hash names all
// before it. Pages are never given back, so a slot outlives its hint.
type hints struct {
	index *Index
	last  []uint32 // by line, of its last block; 0 is an empty line
	lines []slotBatch
	memos []memo // by line
	turn  uint32
	// once has marks of batches that were looked for lately, the last four of each
	// word. Only at the second time is one remembered: most chains end in what never
	// comes again.
	once []uint64
}

const (
	hintSets = 1 << 11
	hintWays = 4
	// hinted is how many leading blocks of a chain are remembered, lest one long
	// chain takes the room of all others.
	hinted = 2048

	onceWords = 1 << 12
)

// hintOf is the first line of a batch's set, and what stands for its last block
// there, never 0. It need not be another for each.
func hintOf(last Hash) (set int, tag uint32) {
	return int(last%hintSets) * hintWays, uint32(last>>32) | 1
}

// follow forgets what was remembered of another index than x. No pointer to that
// one's slots may be left when it is: its memory can be given back then.
func (h *Hits) follow(x *Index) {
	m := &h.hints
	if m.index == x {
		return
	}
	clear(m.last)
	clear(m.lines)
	clear(m.memos)
	clear(m.once)
	h.pipeline = pipeline{}
	m.index = x
}

// hint is what is remembered of a batch.
type hint struct {
	slots *slotBatch // where its blocks stood; nil if the memo knows it as it is now
	memo  *memo
	name  uint64 // of its hashes
	sum   uint32 // of its stamps, now
}

// look finds what is remembered of the batch that begins at block at of chain, if
// anything is. Where its slots will be read, they are asked for.
func (m *hints) look(chain []Hash, at int, found *hint) (ok bool) {
	line := m.find(chain, at)
	if line < 0 {
		return false
	}
	memo := &m.memos[line]
	sum, name := m.index.stamps.sum((*[batch]Hash)(chain[at:]))
	found.memo, found.slots = memo, nil
	if !memo.recalls(sum, name) {
		found.slots, found.sum, found.name = &m.lines[line], sum, name
		fetch(found.slots)
	}
	return true
}

// find is the line of the batch that begins at block at of chain, negative if
// there is none.
func (m *hints) find(chain []Hash, at int) (line int) {
	end := at + batch
	if end > len(chain) || end > hinted || len(m.last) == 0 {
		return -1
	}
	set, last := hintOf(chain[end-1])
	ways := (*[hintWays]uint32)(m.last[set:])
	// A sum, not jumps: which of the four it is nobody could guess.
	way := (one(ways[1] == last) + 2*one(ways[2] == last) + 3*one(ways[3] == last)) & (hintWays - 1)
	if ways[way] != last {
		return -1
	}
	return set + way
}

func one(is bool) (n int) {
	if is {
		n = 1
	}
	return n
}

// stretch is the end of the run of blocks from at on that find finds nothing of.
func (m *hints) stretch(chain []Hash, at int) int {
	for at += batch; at < len(chain); at += batch {
		if m.find(chain, at) >= 0 {
			return at
		}
		if at > hinted {
			break
		}
	}
	return len(chain)
}

// keep remembers slots for the batch that begins at block at of chain, if it is
// whole.
func (m *hints) keep(chain []Hash, at int, slots *slotBatch) {
	end := at + batch
	if end > len(chain) || end > hinted {
		return
	}
	if m.once == nil {
		m.once = make([]uint64, onceWords)
	}
	set, last := hintOf(chain[end-1])
	if marks := &m.once[last>>1%onceWords]; !hasLane(*marks, uint16(last>>16)) {
		*marks = *marks<<16 | uint64(last>>16)
		return
	}
	if m.last == nil {
		m.last, m.lines = make([]uint32, hintSets*hintWays), make([]slotBatch, hintSets*hintWays)
		m.memos = make([]memo, hintSets*hintWays)
	}
	line := m.take(set, last)
	m.last[line], m.lines[line] = last, *slots
	m.memos[line] = memo{}
	m.memos[line].sum, m.memos[line].name = m.index.stamps.sum((*[batch]Hash)(chain[at:]))
}

// take is the line in which the batch of last is or will be remembered. Those of a
// set are given in turn.
func (m *hints) take(set int, last uint32) (line int) {
	for way := range hintWays {
		if held := m.last[set+way]; held == 0 || held == last {
			return set + way
		}
	}
	m.turn++
	return set + int(m.turn%hintWays)
}
