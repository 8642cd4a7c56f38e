package planner

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/wire/control"
	"github.com/yardmaster/yardmaster/core/wire/section"
)

// sectionRun is how many workers or requests share a section.
const sectionRun = 256

// Snapshot is the state at one index. It is immutable and may be written while
// the machine goes on.
type Snapshot struct {
	applied   uint64
	meta      *meta
	view      *fleet.View
	registers table.Table[*register]
	quotas    quota.Ledger
	members   table.Table[*Member]
	rollout   *rollout.Table
	plan      *plan // nil: none
	window    []remembered
}

// Snapshot captures the state. It takes pointers and copies the request
// window, some 300 KB; it does not encode.
func (m *Machine) Snapshot() *Snapshot {
	return &Snapshot{
		applied: m.applied, meta: m.meta.Load(), view: m.View(), window: m.seen.list(),
		registers: *m.registers.Load(), quotas: *m.quotas.Load(), members: *m.members.Load(),
		rollout: m.rollout.Load(), plan: m.plan.Load(),
	}
}

// Index is the last applied entry it contains.
func (s *Snapshot) Index() uint64 { return s.applied }

// WriteTo writes the snapshot; equal states give equal bytes. What is written
// at feature level 1 can be read by binaries that know no other.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	sw := &sectionWriter{Writer: section.NewWriter(w, snapshotMagic), level: s.meta.featureLevel}
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
	s.writeLevel2(sw)
	s.writeLevel3(sw)
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
			Version: r.res.Version, Granted: int64(r.res.Granted),
		})
	}
	return m
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
