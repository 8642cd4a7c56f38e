package prefix

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// Restore replaces the state by the snapshot in r, all of it or, on an error,
// nothing. Budget and number of workers become those of the snapshot: replicas
// must forget alike. The index that was serves until its last reader has let go of
// it: see [Memory]. Errors wrap [ErrMalformed] or [section.ErrMalformed].
func (s *State) Restore(r io.Reader) error {
	l := loader{memory: s.options.Memory}
	if err := l.read(r); err != nil {
		if l.x != nil {
			l.x.discard()
		}
		return fmt.Errorf("prefix: restore: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.Budget, s.options.Workers = unit.Bytes(l.x.budget), len(l.x.slotOf)
	s.index, s.workers = l.x, l.workers
	s.named = make(map[fleet.WorkerID]*attached, len(l.workers))
	for _, a := range l.workers {
		s.named[a.id] = a
	}
	s.applied = l.applied
	s.publish()
	return nil
}

// loader builds an index from sections.
type loader struct {
	memory  func(*Index) Memory
	x       *Index
	applied uint64
	workers []*attached
	dir     directory

	stage     byte   // the last section's type
	claimed   uint32 // workers
	pages     uint32
	rows      uint32
	shard     int
	nextPage  uint32
	nextRow   uint32
	pageList  []uint32 // free ones, in their order; the index gets them at last
	rowList   []uint32
	freePages map[uint32]bool
	freeRows  map[uint32]bool
}

func malformed(what string) error { return fmt.Errorf("%w: %s", ErrMalformed, what) }

func (l *loader) read(r io.Reader) error {
	in, err := section.NewReader(r, snapshotMagic)
	if err != nil {
		return err
	}
	for {
		kind, version, payload, err := in.Next()
		if err != nil {
			return err
		}
		if kind&section.Ignorable != 0 {
			continue
		}
		if version != sectionVersion {
			return fmt.Errorf("%w: section %d of version %d", ErrMalformed, kind, version)
		}
		d := decoder{b: payload}
		if kind == sectionEnd {
			if count := d.u64(); count != in.Count()-1 || !d.done() {
				return malformed("sections are missing")
			}
			if err := in.End(); err != nil {
				return err
			}
			return l.finish()
		}
		if err := l.section(kind, &d); err != nil {
			return err
		}
	}
}

func (l *loader) section(kind byte, d *decoder) error {
	if kind < l.stage || kind > l.stage+1 && !l.skips(kind) {
		return fmt.Errorf("%w: section %d after section %d", ErrMalformed, kind, l.stage)
	}
	again := kind == l.stage
	l.stage = kind
	var err error
	switch {
	case kind == sectionHead && !again:
		err = l.head(d)
	case kind == sectionWorkers:
		err = l.addWorkers(d)
	case kind == sectionSlots && !again:
		err = l.slots(d)
	case kind == sectionShard:
		err = l.addShard(d)
	case kind == sectionFree && !again:
		err = l.free(d)
	case kind == sectionPages:
		err = l.addPages(d)
	case kind == sectionRows:
		err = l.addRows(d)
	default:
		err = malformed("a section twice")
	}
	if err == nil && !d.done() {
		err = fmt.Errorf("%w: section %d is cut or too long", ErrMalformed, kind)
	}
	return err
}

// skips reports whether kind may come now although the section before it did
// not: workers need not be there. Nothing else may be missing.
func (l *loader) skips(kind byte) bool {
	return kind == sectionSlots && l.stage == sectionHead
}

// maxBudget bounds what a snapshot may claim.
const maxBudget = 1 << 40

func (l *loader) head(d *decoder) error {
	budget, workers := d.u64(), d.u32()
	l.applied = d.u64()
	forgotten := d.u64()
	l.claimed, l.pages, l.rows = d.u32(), d.u32(), d.u32()
	if budget == 0 || budget > maxBudget || workers == 0 || workers > MaxWorkers || forgotten >= 1<<63 || l.claimed > workers {
		return malformed("head")
	}
	l.x = bare(Options{Budget: unit.Bytes(budget), Workers: int(workers), Memory: l.memory})
	l.x.forgotten.Store(int64(forgotten))
	return nil
}

func (l *loader) addWorkers(d *decoder) error {
	for d.more() {
		a := &attached{id: fleet.WorkerID(d.bytes(int(d.u8())))}
		a.epoch, a.worker = fleet.Epoch(d.u64()), Worker(d.u16())
		flags := d.u8()
		a.exact, a.underway = flags&flagExact != 0, flags&flagUnderway != 0
		a.last, a.repair, a.parts = d.u64(), d.u64(), d.u32()
		for i := range a.sums {
			a.sums[i], a.counts[i] = d.u64(), int32(d.u32())
		}
		inOrder := len(l.workers) == 0 || l.workers[len(l.workers)-1].id < a.id
		if a.id == "" || len(a.id) > maxWorkerID || a.epoch == 0 || !inOrder || flags&^(flagExact|flagUnderway) != 0 || len(l.workers) >= int(l.claimed) {
			return malformed("worker")
		}
		l.workers = append(l.workers, a)
	}
	return nil
}

func (l *loader) slots(d *decoder) error {
	x := l.x
	for w := range x.slotOf {
		x.slotOf[w], x.identity[w] = d.u16(), d.u64()
	}
	x.freeWorkers = list[Worker](d, len(x.slotOf))
	x.freeSlots = list[uint16](d, len(x.owners))
	x.sweeping.waiting = list[uint16](d, len(x.owners))
	x.sweeping.round = list[uint16](d, len(x.owners))
	x.sweeping.cursor = d.u32()
	if x.sweeping.cursor > l.pages || len(l.workers) != int(l.claimed) {
		return malformed("slots")
	}
	return l.partition()
}

// partition checks that each worker number is free or attached, once, and each
// slot free, bound or retired.
func (l *loader) partition() error {
	x := l.x
	slots := make([]bool, len(x.owners))
	slots[0] = true
	taken := func(s uint16) bool {
		if int(s) >= len(slots) || slots[s] {
			return false
		}
		slots[s] = true
		return true
	}
	numbers := make([]bool, len(x.slotOf))
	for _, a := range l.workers {
		w := int(a.worker)
		if w >= len(numbers) || numbers[w] || x.identity[w] != uint64(a.epoch) || !taken(x.slotOf[w]) {
			return malformed("attached worker")
		}
		numbers[w] = true
		x.owners[x.slotOf[w]].Store(uint32(w) + 1)
	}
	for _, w := range x.freeWorkers {
		if int(w) >= len(numbers) || numbers[w] || x.slotOf[w] != 0 {
			return malformed("free worker")
		}
		numbers[w] = true
	}
	for _, s := range x.freeSlots {
		if !taken(s) {
			return malformed("free slot")
		}
	}
	for _, retired := range [][]uint16{x.sweeping.waiting, x.sweeping.round} {
		for _, s := range retired {
			if !taken(s) {
				return malformed("retired slot")
			}
			x.sweeping.retired[s] = true
		}
	}
	if !all(numbers) || !all(slots) {
		return malformed("a number is lost")
	}
	return nil
}

func all(marks []bool) bool {
	for _, m := range marks {
		if !m {
			return false
		}
	}
	return true
}

// maxDepth bounds a shard's depth: 2^28 entries are 1 GiB, and more than a
// section holds.
const maxDepth = 28

func (l *loader) addShard(d *decoder) error {
	k, depth := int(d.u8()), d.u8()
	if k != l.shard || k >= numShards || depth > maxDepth || len(d.b) != 4<<depth {
		return malformed("directory")
	}
	l.dir.runs[k] = run{first: uint32(len(l.dir.entries)), depth: depth}
	for d.more() {
		l.dir.entries = append(l.dir.entries, d.u32())
	}
	l.shard++
	return nil
}

func (l *loader) free(d *decoder) error {
	if l.shard != numShards {
		return malformed("directory")
	}
	l.pageList = list[uint32](d, pagesRun)
	l.rowList = list[uint32](d, int(l.rows))
	var ok bool
	if l.freePages, ok = set(l.pageList, l.pages); !ok {
		return malformed("free page")
	}
	if l.freeRows, ok = set(l.rowList, l.rows); !ok {
		return malformed("free row")
	}
	return nil
}

// set is the numbers of a list, which are below n and different.
func set(list []uint32, n uint32) (map[uint32]bool, bool) {
	out := make(map[uint32]bool, len(list))
	for _, v := range list {
		if v >= n || out[v] {
			return nil, false
		}
		out[v] = true
	}
	return out, true
}

// addPages takes pages in the order of their numbers. Those that are free, few,
// are passed over.
func (l *loader) addPages(d *decoder) error {
	x := l.x
	for d.more() {
		l.passPages()
		n, depth, hand := d.u32(), d.u8(), d.u8()
		if d.failed || n != l.nextPage || n >= l.pages || hand >= pageSlots {
			return malformed("page")
		}
		l.nextPage++
		m := pageMeta{depth: depth, hand: hand, inUse: true}
		x.pages.alloc()
		x.meta = append(x.meta, pageMeta{})
		p := page(*x.pages.chunks.Load(), n)
		for g := range pageGroups {
			p[g] = d.u64()
		}
		for slot := range pageSlots {
			at := slotsAt + slot*slotWords
			switch tag := p.tag(at); {
			case tag == tagDeleted:
				m.deleted++
			case tag >= tagLive:
				m.live++
				for i := range slotWords {
					p[at+i] = d.u64()
				}
			case tag != tagEmpty:
				return malformed("tag")
			}
		}
		if int(m.live)+int(m.deleted) > pageMax {
			return malformed("page is overfull")
		}
		x.meta[n] = m
	}
	return nil
}

// passPages makes the free pages that are next.
func (l *loader) passPages() {
	for ; l.freePages[l.nextPage]; l.nextPage++ {
		l.x.pages.alloc()
		l.x.meta = append(l.x.meta, pageMeta{})
	}
}

func (l *loader) addRows(d *decoder) error {
	for d.more() {
		l.passRows()
		n := d.u32()
		if d.failed || n != l.nextRow || n >= l.rows {
			return malformed("row")
		}
		l.nextRow++
		row := l.x.rows.row(l.newRow())
		for i := range row {
			row[i] = d.u64()
		}
	}
	return nil
}

func (l *loader) newRow() uint32 {
	n, _ := l.x.rows.take(1 << 62) // there is room: the budget was kept when it was written
	return n
}

func (l *loader) passRows() {
	for ; l.freeRows[l.nextRow]; l.nextRow++ {
		l.newRow()
	}
}

// finish checks all that sections say of each other, and counts.
func (l *loader) finish() error {
	if l.stage < sectionFree {
		return malformed("sections are missing")
	}
	l.passPages()
	l.passRows()
	if l.nextPage != l.pages || l.nextRow != l.rows {
		return malformed("pages or rows are missing")
	}
	x := l.x
	if err := l.checkDirectory(); err != nil {
		return err
	}
	x.dir.Store(&l.dir)
	held := make([]bool, l.rows) // rows that a block names
	var err error
	x.eachPage(func(n uint32, p *pageMem) {
		p.eachLive(func(at int) {
			if err == nil {
				err = l.checkBlock(n, p, at, held)
			}
		})
	})
	if err != nil {
		return err
	}
	for n := range held {
		if held[n] == l.freeRows[uint32(n)] {
			return malformed("a row is lost")
		}
	}
	x.pages.free, x.rows.free = l.pageList, l.rowList
	x.imaged = true
	x.stock()
	x.account()
	return nil
}

// checkDirectory checks that every page in use stands for one aligned span of
// entries, and nothing else does.
func (l *loader) checkDirectory() error {
	seen := make([]bool, l.pages)
	for _, r := range l.dir.runs {
		entries := l.dir.entries[r.first:][:1<<r.depth]
		for i := 0; i < len(entries); {
			n := entries[i]
			if n >= l.pages || seen[n] || !l.x.meta[n].inUse || l.x.meta[n].depth > r.depth {
				return malformed("directory entry")
			}
			seen[n] = true
			span := 1 << (r.depth - l.x.meta[n].depth)
			if i%span != 0 {
				return malformed("directory span")
			}
			for _, same := range entries[i : i+span] {
				if same != n {
					return malformed("directory span")
				}
			}
			i += span
		}
	}
	for n := range seen {
		if seen[n] != l.x.meta[n].inUse {
			return malformed("a page is lost")
		}
	}
	return nil
}

// checkBlock checks one block of page n and counts its holders.
func (l *loader) checkBlock(n uint32, p *pageMem, at int, held []bool) error {
	x, key := l.x, p[at]
	if x.pageOf(key) != n {
		return malformed("a block on a strange page")
	}
	if spot, ok := p.locate(key); !ok || spot != at {
		return malformed("a block that cannot be found")
	}
	if !l.checkHolders(p[at+1], p[at+2]&^referenced, held) {
		return malformed("holders")
	}
	x.blocks.Add(1)
	ok := true
	x.eachHolder(p, at, func(s uint16) {
		if ok = ok && int(s) < len(x.owners) && (x.owners[s].Load() != 0 || x.sweeping.retired[s]); ok {
			x.countPair(key, s, 1)
		}
	})
	if !ok {
		return malformed("a holder that is nobody")
	}
	return nil
}

// checkHolders checks the form of a block's holder words.
func (l *loader) checkHolders(a, b uint64, held []bool) bool {
	if a&inRow != 0 {
		row := uint64(rowOf(a))
		if a != inRow|row || b != 0 || row >= uint64(l.rows) || held[row] {
			return false
		}
		held[row] = true
		n := 0
		for _, word := range l.x.rows.row(uint32(row)) {
			n += bits.OnesCount64(word)
		}
		return n > shrinkAt
	}
	set, n := unpack(a, b)
	for i := 1; i < n; i++ {
		if set[i] <= set[i-1] {
			return false
		}
	}
	again, rest := pack(set[:n])
	return n > 0 && again == a && rest == b
}

// decoder takes little-endian numbers off a payload. Beyond its end all are zero
// and failed is set.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) bytes(n int) []byte {
	if len(d.b) < n {
		d.b, d.failed = nil, true
		return make([]byte, n)
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) u8() byte    { return d.bytes(1)[0] }
func (d *decoder) u16() uint16 { return le.Uint16(d.bytes(2)) }
func (d *decoder) u32() uint32 { return le.Uint32(d.bytes(4)) }
func (d *decoder) u64() uint64 { return le.Uint64(d.bytes(8)) }
func (d *decoder) more() bool  { return len(d.b) > 0 }
func (d *decoder) done() bool  { return len(d.b) == 0 && !d.failed }

// list reads what appendList wrote, of at most most elements.
func list[T Worker | uint16 | uint32](d *decoder, most int) []T {
	n := int(d.u32())
	if n > most || n > len(d.b)/4 {
		d.b, d.failed = nil, true
		return nil
	}
	var out []T
	for range n {
		v := d.u32()
		if uint32(T(v)) != v {
			d.failed = true
		}
		out = append(out, T(v))
	}
	return out
}
