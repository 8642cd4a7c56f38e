package prefix

import (
	"encoding/binary"
	"io"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/yardmaster/yardmaster/core/wire/section"
)

// The sections of a snapshot, in this order. Numbers are for ever.
const (
	snapshotMagic = "YMPREF\x01\n"

	sectionHead    = 1
	sectionWorkers = 2 // a run of attached workers, by id
	sectionSlots   = 3
	sectionShard   = 4 // one for each of the directory's shards
	sectionFree    = 5 // pages and rows that are not in use
	sectionPages   = 6 // a run of pages
	sectionRows    = 7 // a run of rows
	sectionEnd     = 8

	sectionVersion = 1

	workersRun = 64
	pagesRun   = 64
	rowsBytes  = 1 << 18 // of a run of rows, about
)

// Snapshot is a state at one moment. It is written while the state goes on, by
// one goroutine; Release ends it.
type Snapshot struct {
	image   *image
	applied uint64
	workers []*attached
}

// Snapshot captures the state. It copies what is small; workers are copied before
// they change, and so are pages of the index that have not been written yet. The
// caller releases it.
func (s *State) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.captures++
	return &Snapshot{image: s.index.capture(), applied: s.applied, workers: slices.Clone(s.workers)}
}

// Release frees what the snapshot holds. Releasing twice is harmless.
func (s *Snapshot) Release() { s.image.release() }

// WriteTo writes the snapshot, once: equal states give equal bytes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	out := section.NewWriter(w, snapshotMagic)
	out.Write(sectionHead, sectionVersion, s.appendHead)
	for run := range slices.Chunk(s.workers, workersRun) {
		out.Write(sectionWorkers, sectionVersion, func(b []byte) []byte {
			for _, a := range run {
				b = a.append(b)
			}
			return b
		})
	}
	s.image.write(out)
	out.Write(sectionEnd, sectionVersion, func(b []byte) []byte { return le.AppendUint64(b, out.Count()) })
	return out.Result()
}

var le = binary.LittleEndian

func (s *Snapshot) appendHead(b []byte) []byte {
	im := s.image
	b = le.AppendUint64(b, uint64(im.budget))
	b = le.AppendUint32(b, uint32(len(im.slotOf)))
	b = le.AppendUint64(b, s.applied)
	b = le.AppendUint64(b, uint64(im.forgotten))
	b = le.AppendUint32(b, uint32(len(s.workers)))
	b = le.AppendUint32(b, uint32(len(im.meta)))
	return le.AppendUint32(b, im.rowsUsed)
}

const (
	flagExact = 1 << iota
	flagUnderway
)

func (a *attached) append(b []byte) []byte {
	b = append(append(b, byte(len(a.id))), a.id...)
	b = le.AppendUint64(b, uint64(a.epoch))
	b = le.AppendUint16(b, uint16(a.worker))
	var flags byte
	if a.exact {
		flags |= flagExact
	}
	if a.underway {
		flags |= flagUnderway
	}
	b = append(b, flags)
	b = le.AppendUint64(b, a.last)
	b = le.AppendUint64(b, a.repair)
	b = le.AppendUint32(b, a.parts)
	for i := range a.sums {
		b = le.AppendUint64(b, a.sums[i])
		b = le.AppendUint32(b, uint32(a.counts[i]))
	}
	return b
}

func (im *image) write(out *section.Writer) {
	out.Write(sectionSlots, sectionVersion, im.appendSlots)
	for k, r := range im.dir.runs {
		out.Write(sectionShard, sectionVersion, func(b []byte) []byte {
			b = append(b, byte(k), r.depth)
			for _, n := range im.dir.entries[r.first:][:1<<r.depth] {
				b = le.AppendUint32(b, n)
			}
			return b
		})
	}
	out.Write(sectionFree, sectionVersion, func(b []byte) []byte {
		return appendList(appendList(b, im.freePages), im.freeRows)
	})
	im.writePages(out)
	im.writeRows(out)
}

func (im *image) writePages(out *section.Writer) {
	pages, p := reader{parts: im.pages}, new(pageMem)
	for n := im.nextPage(0); int(n) < len(im.meta) && out.Err() == nil; {
		pages.handOver()
		out.Write(sectionPages, sectionVersion, func(b []byte) []byte {
			for range pagesRun {
				if int(n) == len(im.meta) {
					break
				}
				pages.copy(n, im.x.pageWords(n), p[:])
				b = im.appendPage(b, n, p)
				n = im.nextPage(n + 1)
			}
			return b
		})
	}
}

// nextPage is the first page in use from n on, or the number of all.
func (im *image) nextPage(n uint32) uint32 {
	for int(n) < len(im.meta) && !im.meta[n].inUse {
		n++
	}
	return n
}

func (im *image) appendSlots(b []byte) []byte {
	for w := range im.slotOf {
		b = le.AppendUint16(b, im.slotOf[w])
		b = le.AppendUint64(b, im.identity[w])
	}
	b = appendList(b, im.freeWorkers)
	b = appendList(b, im.freeSlots)
	b = appendList(b, im.waiting)
	b = appendList(b, im.round)
	return le.AppendUint32(b, im.cursor)
}

// appendList appends a list's length and its elements, four bytes each.
func appendList[T Worker | uint16 | uint32](b []byte, list []T) []byte {
	b = le.AppendUint32(b, uint32(len(list)))
	for _, v := range list {
		b = le.AppendUint32(b, uint32(v))
	}
	return b
}

// appendPage appends a page's number, its depth and hand, all tags and the live
// slots.
func (im *image) appendPage(b []byte, n uint32, p *pageMem) []byte {
	m := im.meta[n]
	b = append(le.AppendUint32(b, n), m.depth, m.hand)
	for g := range pageGroups {
		b = le.AppendUint64(b, p[g])
	}
	p.eachLive(func(at int) {
		for _, word := range p[at : at+slotWords] {
			b = le.AppendUint64(b, word)
		}
	})
	return b
}

func (im *image) writeRows(out *section.Writer) {
	free := im.freeRow()
	rows, chunk := reader{parts: im.rows}, make([]uint64, chunkRows*im.words)
	for n := uint32(0); n < im.rowsUsed && out.Err() == nil; {
		rows.handOver()
		out.Write(sectionRows, sectionVersion, func(b []byte) []byte {
			for ; n < im.rowsUsed && len(b) < rowsBytes; n++ {
				if at := n / chunkRows; n%chunkRows == 0 {
					rows.copy(at, im.x.rowWords(at), chunk)
				}
				if free[n] {
					continue
				}
				b = le.AppendUint32(b, n)
				for _, word := range chunk[int(n%chunkRows)*im.words:][:im.words] {
					b = le.AppendUint64(b, word)
				}
			}
			return b
		})
	}
}

// Digest is a checksum of the state, equal wherever the same frames have been
// applied. It takes time with the workers, not with the blocks.
func (s *State) Digest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := le.AppendUint64(nil, s.applied)
	b = le.AppendUint64(b, s.index.Digest())
	b = le.AppendUint64(b, uint64(s.index.forgotten.Load()))
	b = le.AppendUint64(b, uint64(s.index.held.Load()))
	b = le.AppendUint32(b, s.index.pages.used)
	for _, a := range s.workers {
		b = a.append(b)
	}
	return xxhash.Sum64(b)
}
