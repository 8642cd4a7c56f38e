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
	turn  uint32
	// once has a mark of batches that were looked for lately. Only at the second
	// time is one remembered: most chains end in what never comes again.
	once []uint16
}

const (
	hintSets = 1 << 11
	hintWays = 4
	// hinted is how many leading blocks of a chain are remembered, lest one long
	// chain takes the room of all others.
	hinted = 2048

	onceMarks = 1 << 14
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
	clear(m.once)
	h.pipeline = pipeline{}
	m.index = x
}

// find is where the blocks of the batch that begins at block at of chain stood,
// or nil.
func (m *hints) find(chain []Hash, at int) *slotBatch {
	end := at + batch
	if end > len(chain) || end > hinted || len(m.last) == 0 {
		return nil
	}
	set, last := hintOf(chain[end-1])
	ways := (*[hintWays]uint32)(m.last[set:])
	// A sum, not jumps: which of the four it is nobody could guess.
	way := (one(ways[1] == last) + 2*one(ways[2] == last) + 3*one(ways[3] == last)) & (hintWays - 1)
	if ways[way] != last {
		return nil
	}
	return &m.lines[set+way]
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
		if m.find(chain, at) != nil {
			return at
		}
		if at > hinted {
			break
		}
	}
	return len(chain)
}

// keep remembers slots for the batch that begins at block at of chain, if it is
// whole. The lines of a set are overwritten in turn.
func (m *hints) keep(chain []Hash, at int, slots *slotBatch) {
	end := at + batch
	if end > len(chain) || end > hinted {
		return
	}
	if m.last == nil {
		m.last, m.lines = make([]uint32, hintSets*hintWays), make([]slotBatch, hintSets*hintWays)
		m.once = make([]uint16, onceMarks)
	}
	line, last := hintOf(chain[end-1])
	if mark := &m.once[last>>1%onceMarks]; *mark != uint16(last>>16) {
		*mark = uint16(last >> 16)
		return
	}
	for way := range hintWays {
		if held := m.last[line+way]; held == 0 || held == last {
			m.last[line+way], m.lines[line+way] = last, *slots
			return
		}
	}
	m.turn++
	line += int(m.turn % hintWays)
	m.last[line], m.lines[line] = last, *slots
}
