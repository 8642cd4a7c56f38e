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
	last  []Hash // by line; 0 is an empty line
	lines []slotBatch
	turn  uint32
	// once has a mark of batches that were looked for lately. Only at the second
	// time is one remembered: most chains end in what never comes again.
	once []uint16
}

const (
	hintSets = 1 << 12
	hintWays = 2
	// hinted is how many leading blocks of a chain are remembered, lest one long
	// chain takes the room of all others.
	hinted = 2048

	onceMarks = 1 << 14
)

// follow forgets what was remembered of another index than x.
func (m *hints) follow(x *Index) {
	if m.index == x {
		return
	}
	m.index = x
	clear(m.last)
	clear(m.lines)
	clear(m.once)
}

// find is where the blocks of the batch that begins at block at of chain stood,
// or nil.
func (m *hints) find(chain []Hash, at int) *slotBatch {
	end := at + batch
	if end > len(chain) || end > hinted || len(m.last) == 0 {
		return nil
	}
	last := chain[end-1]
	line := last % hintSets * hintWays
	second := line + 1
	if m.last[second] == last {
		line = second // a move, not a jump: which of the two it is nobody could guess
	}
	if m.last[line] != last || last == 0 {
		return nil
	}
	return &m.lines[line]
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
// whole. The two lines of a set are overwritten in turn.
func (m *hints) keep(chain []Hash, at int, slots *slotBatch) {
	end := at + batch
	if end > len(chain) || end > hinted {
		return
	}
	if m.last == nil {
		m.last, m.lines = make([]Hash, hintSets*hintWays), make([]slotBatch, hintSets*hintWays)
		m.once = make([]uint16, onceMarks)
	}
	last := chain[end-1]
	if mark := &m.once[last>>16%onceMarks]; *mark != uint16(last>>48) {
		*mark = uint16(last >> 48)
		return
	}
	line := int(last%hintSets) * hintWays
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
