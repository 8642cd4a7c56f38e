package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// sectionRun is how many workers or requests share a section.
const sectionRun = 256

// Snapshot is the state at one index. It is immutable and may be written while
// the machine goes on.
type Snapshot struct {
	applied uint64
	meta    *meta
	view    *fleet.View
	window  []remembered
}

// Snapshot captures the state. It takes pointers and copies the request
// window; it does not encode.
func (m *Machine) Snapshot() *Snapshot {
	return &Snapshot{applied: m.applied, meta: m.meta.Load(), view: m.View(), window: m.seen.list()}
}

// Index is the last applied entry it contains.
func (s *Snapshot) Index() uint64 { return s.applied }

// WriteTo writes the snapshot; equal states give equal bytes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	sw := &sectionWriter{Writer: section.NewWriter(w, snapshotMagic)}
	sw.message(sectionHead, &control.HeadSection{
		ClusterId: s.meta.clusterID, FeatureLevel: s.meta.featureLevel, Applied: s.applied, ViewIndex: s.view.Index,
	})
	for rest := s.view.Workers; len(rest) > 0; {
		var run *control.WorkersSection
		run, rest = workersSection(rest)
		sw.message(sectionWorkers, run)
	}
	for start := 0; start < len(s.window); start += sectionRun {
		run := s.window[start:min(start+sectionRun, len(s.window))]
		sw.message(sectionWindow, windowSection(run))
	}
	sw.message(sectionEnd, &control.EndSection{Sections: sw.Count()})
	return sw.result()
}

// workersSection takes workers until the section is full by number or size,
// and returns the ones left. A worker is smaller than MaxEntry, so a section
// stays far below section.Max.
func workersSection(workers []fleet.Worker) (*control.WorkersSection, []fleet.Worker) {
	m, size := &control.WorkersSection{}, 0
	for i := range workers {
		if i == sectionRun || size > MaxEntry {
			return m, workers[i:]
		}
		w := control.FromWorker(&workers[i])
		m.Workers = append(m.Workers, w)
		size += proto.Size(w)
	}
	return m, nil
}

func windowSection(run []remembered) *control.WindowSection {
	m := &control.WindowSection{}
	for _, r := range run {
		m.Requests = append(m.Requests, &control.RememberedRequest{
			Id: r.id[:], Index: r.res.Index, Code: uint32(r.res.Code), Epoch: uint64(r.res.Epoch), Changed: r.res.Changed,
		})
	}
	return m
}

// Restore replaces the state by the snapshot in r, all of it or, on an error,
// nothing. Errors wrap ErrMalformed or ErrUnknownEntry.
func (m *Machine) Restore(r io.Reader) error {
	var l loader
	if err := l.read(r); err != nil {
		return err
	}
	m.applied = l.applied
	m.seen = l.seen
	m.meta.Store(&l.meta)
	m.view.Store(fleet.NewView(l.viewIndex, l.workers))
	return nil
}

// Digest identifies the state: the SHA-256 of its snapshot.
type Digest [sha256.Size]byte

// String is the digest in hex.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Digest is the digest of the current state. Nodes that have applied the same
// entries have the same digest.
func (m *Machine) Digest() Digest { return m.Snapshot().Digest() }

// Digest is the digest of the captured state.
func (s *Snapshot) Digest() Digest {
	h := sha256.New()
	if _, err := s.WriteTo(h); err != nil {
		// The state came from entries of bounded size and valid UTF-8.
		panic(fmt.Sprintf("planner: state does not encode: %v", err))
	}
	return Digest(h.Sum(nil))
}

// loader collects the sections of one snapshot.
type loader struct {
	meta      meta
	applied   uint64
	viewIndex uint64
	workers   []fleet.Worker
	seen      window
	headSeen  bool
}

func (l *loader) read(r io.Reader) error {
	in, err := openSections(r)
	if err != nil {
		return err
	}
	for {
		t, payload, err := nextSection(in)
		if err != nil {
			return err
		}
		if t == sectionEnd && l.headSeen {
			return l.end(payload, in)
		}
		if err := l.section(t, payload); err != nil {
			return err
		}
	}
}

func (l *loader) section(t sectionType, payload []byte) error {
	if !l.headSeen && t != sectionHead && t&sectionIgnorable == 0 {
		return fmt.Errorf("%w: section %d before the head", ErrMalformed, t)
	}
	switch t {
	case sectionHead:
		return l.head(payload)
	case sectionWorkers:
		return l.addWorkers(payload)
	case sectionWindow:
		return l.addWindow(payload)
	case sectionEnd, sectionIgnorable: // not after the head; the bit alone is no type
	}
	if t&sectionIgnorable != 0 {
		return nil
	}
	return fmt.Errorf("section %d: %w", t, ErrUnknownEntry)
}

func (l *loader) head(payload []byte) error {
	var m control.HeadSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	if l.headSeen || m.GetViewIndex() > m.GetApplied() {
		return fmt.Errorf("%w: head section", ErrMalformed)
	}
	l.headSeen = true
	l.meta = meta{clusterID: m.GetClusterId(), featureLevel: m.GetFeatureLevel()}
	l.applied, l.viewIndex = m.GetApplied(), m.GetViewIndex()
	return nil
}

func (l *loader) addWorkers(payload []byte) error {
	var m control.WorkersSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetWorkers() {
		w, err := control.ToWorker(pb)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		inOrder := len(l.workers) == 0 || l.workers[len(l.workers)-1].ID < w.ID
		if w.ID == "" || w.Epoch == 0 || uint64(w.Epoch) > l.viewIndex || !inOrder || len(l.workers) >= MaxWorkers {
			return fmt.Errorf("%w: worker %q of epoch %d", ErrMalformed, w.ID, w.Epoch)
		}
		l.workers = append(l.workers, w)
	}
	return nil
}

func (l *loader) addWindow(payload []byte) error {
	var m control.WindowSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetRequests() {
		if len(pb.GetId()) != len(RequestID{}) || pb.GetCode() > uint32(^Code(0)) {
			return fmt.Errorf("%w: remembered request %x", ErrMalformed, pb.GetId())
		}
		id := RequestID(pb.GetId())
		if _, twice := l.seen.find(id); twice || id == (RequestID{}) || len(l.seen.ring) >= windowSize {
			return fmt.Errorf("%w: remembered request %v", ErrMalformed, id)
		}
		l.seen.add(id, Result{
			Index: pb.GetIndex(), Code: Code(pb.GetCode()), Epoch: fleet.Epoch(pb.GetEpoch()), Changed: pb.GetChanged(),
		})
	}
	return nil
}

func (l *loader) end(payload []byte, in *section.Reader) error {
	var m control.EndSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	if n := in.Count() - 1; m.GetSections() != n {
		return fmt.Errorf("%w: %d sections of %d", ErrMalformed, n, m.GetSections())
	}
	if err := in.End(); err != nil {
		return fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	return nil
}
