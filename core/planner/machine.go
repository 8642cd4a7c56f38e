package planner

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/table"
)

// MaxWorkers bounds the fleet. It belongs to entry version 1 and cannot change
// within it: replicas would disagree about who was admitted.
const MaxWorkers = 16384

// Machine is the state of the group core. Apply, Restore, Snapshot and Digest
// belong to one goroutine, or must not overlap; everything that reads (View,
// Register, Members, Quota and so on) may be called from anywhere at any time.
// New is its constructor.
type Machine struct {
	maxLevel uint32        // highest feature level it reads
	present  func() uint64 // window of quotas, for Check; nil compares nothing

	applied uint64
	seen    window
	meta    atomic.Pointer[meta]
	// The view is the state of the fleet itself, not a copy of it: a change
	// builds the next view, so a snapshot is the taking of one pointer.
	view      atomic.Pointer[fleet.View]
	registers atomic.Pointer[table.Table[*register]]
	quotas    atomic.Pointer[quota.Ledger]
	members   atomic.Pointer[table.Table[*Member]]
	rollout   atomic.Pointer[rollout.Table]
	plan      atomic.Pointer[plan]          // nil: none yet
	changed   atomic.Pointer[chan struct{}] // of the last two

	sums checksums // of Checksum
}

type meta struct {
	clusterID    string
	featureLevel uint32
}

// New is the machine before the first entry.
func New() *Machine { return NewAtLevel(MaxFeatureLevel) }

// NewAtLevel is a machine that reads nothing beyond a feature level, as an
// older binary would: it is for trying what such a binary does among newer
// ones. maxLevel is 1 to MaxFeatureLevel.
func NewAtLevel(maxLevel uint32) *Machine {
	m := &Machine{maxLevel: maxLevel}
	m.meta.Store(&meta{})
	m.view.Store(fleet.NewView(0, nil))
	m.registers.Store(&table.Table[*register]{})
	m.quotas.Store(&quota.Ledger{})
	m.members.Store(&table.Table[*Member]{})
	m.rollout.Store(&rollout.Table{})
	m.changed.Store(new(make(chan struct{})))
	return m
}

// View is the fleet as of the last change. It is never nil.
func (m *Machine) View() *fleet.View { return m.view.Load() }

// ClusterID is the cluster's name, empty before InitCluster.
func (m *Machine) ClusterID() string { return m.meta.Load().clusterID }

// FeatureLevel is the committed feature level.
func (m *Machine) FeatureLevel() uint32 { return m.meta.Load().featureLevel }

// Applied is the index of the last applied entry.
func (m *Machine) Applied() uint64 { return m.applied }

// Apply carries out the entry at index. Indices rise, with gaps where Raft kept
// entries of its own.
//
// An error means that the entry cannot be understood, and is final: the node
// must stop applying. A command that is understood and not granted is a Result
// with a Code, not an error. Errors wrap ErrMalformed or ErrUnknownEntry.
func (m *Machine) Apply(index uint64, entry []byte) (Result, error) {
	if index <= m.applied {
		return Result{}, fmt.Errorf("%w: entry %d after entry %d", ErrMalformed, index, m.applied)
	}
	id, cmd, err := decode(entry, m.maxLevel)
	if err != nil {
		return Result{}, fmt.Errorf("entry %d: %w", index, err)
	}
	if c, ok := cmd.(SetFeatureLevel); ok && c.Level > m.maxLevel {
		return Result{}, fmt.Errorf("entry %d: feature level %d: %w", index, c.Level, ErrUnknownEntry)
	}
	m.applied = index
	if first, ok := m.seen.find(id); ok {
		return first, nil
	}
	res := m.execute(index, cmd)
	res.Index = index
	m.seen.add(id, res)
	return res, nil
}

func (m *Machine) execute(index uint64, cmd Command) Result {
	if cmd != nil && m.allows(cmd.kind()) != nil {
		return Result{Code: Refused} // a proposer that did not look
	}
	switch c := cmd.(type) {
	case InitCluster:
		return m.initCluster(c)
	case SetFeatureLevel:
		return m.setFeatureLevel(c)
	case RegisterWorker:
		return m.register(index, c)
	case ExpireWorker:
		return m.remove(index, c.ID, c.Epoch)
	case LeaveWorker:
		return m.remove(index, c.ID, c.Epoch)
	case DrainWorker:
		return m.drain(index, c)
	default:
		return m.execute2(index, cmd)
	}
}

// execute2 carries out commands of feature level 2.
func (m *Machine) execute2(index uint64, cmd Command) Result {
	switch c := cmd.(type) {
	case SetRegister:
		return m.setRegister(index, c)
	case DeleteRegister:
		return m.deleteRegister(c)
	case SetQuota:
		return m.setQuota(c)
	case DropQuota:
		return m.dropQuota(c)
	case GrantQuota:
		return m.grantQuota(c)
	case ReturnQuota:
		return m.returnQuota(c)
	case EndHolder:
		return m.endHolder(c)
	case PutMember:
		return m.putMember(index, c)
	case DropMember:
		return m.dropMember(c)
	default:
		return m.execute3(index, cmd)
	}
}

func (m *Machine) initCluster(c InitCluster) Result {
	now := *m.meta.Load()
	switch now.clusterID {
	case c.ClusterID:
		return Result{}
	case "":
		now.clusterID = c.ClusterID
		m.meta.Store(&now)
		return Result{Changed: true}
	default:
		return Result{Code: Taken}
	}
}

func (m *Machine) setFeatureLevel(c SetFeatureLevel) Result {
	now := *m.meta.Load()
	switch {
	case c.Level < now.featureLevel:
		return Result{Code: Refused}
	case c.Level == now.featureLevel:
		return Result{}
	}
	now.featureLevel = c.Level
	m.meta.Store(&now)
	return Result{Changed: true}
}

func (m *Machine) register(index uint64, c RegisterWorker) Result {
	if c.Worker.ID == "" || c.Worker.Incarnation == "" {
		return Result{Code: Refused}
	}
	v := m.View()
	if i := v.Find(c.Worker.ID); i >= 0 {
		return m.registerAgain(index, v.Workers[i], c)
	}
	if len(v.Workers) >= MaxWorkers {
		return Result{Code: Full}
	}
	w := c.Worker
	w.Epoch = fleet.Epoch(index)
	m.put(index, w)
	return Result{Epoch: w.Epoch, Changed: true}
}

func (m *Machine) registerAgain(index uint64, old fleet.Worker, c RegisterWorker) Result {
	switch {
	case old.Incarnation != c.Worker.Incarnation && c.IfAbsent:
		return Result{Code: Taken}
	case old.Incarnation != c.Worker.Incarnation:
		w := c.Worker
		w.Epoch = fleet.Epoch(index)
		m.put(index, w)
		return Result{Epoch: w.Epoch, Changed: true}
	case c.Worker.Draining && !old.Draining:
		old.Draining = true
		m.put(index, old)
		return Result{Epoch: old.Epoch, Changed: true}
	}
	return Result{Epoch: old.Epoch}
}

func (m *Machine) drain(index uint64, c DrainWorker) Result {
	i, code := m.current(c.ID, c.Epoch)
	if code != OK {
		return Result{Code: code}
	}
	w := m.View().Workers[i]
	if w.Draining {
		return Result{Epoch: w.Epoch}
	}
	w.Draining = true
	m.put(index, w)
	return Result{Epoch: w.Epoch, Changed: true}
}

func (m *Machine) remove(index uint64, id fleet.WorkerID, epoch fleet.Epoch) Result {
	i, code := m.current(id, epoch)
	if code != OK {
		return Result{Code: code}
	}
	workers := slices.Clone(m.View().Workers)
	m.view.Store(fleet.NewView(index, slices.Delete(workers, i, i+1)))
	return Result{Epoch: epoch, Changed: true}
}

func (m *Machine) current(id fleet.WorkerID, epoch fleet.Epoch) (int, Code) {
	v := m.View()
	i := v.Find(id)
	switch {
	case i < 0:
		return i, UnknownWorker
	case v.Workers[i].Epoch != epoch:
		return i, StaleEpoch
	}
	return i, OK
}

// put publishes the view with w added or replaced.
func (m *Machine) put(index uint64, w fleet.Worker) {
	old := m.View().Workers
	i, found := slices.BinarySearchFunc(old, w.ID, func(x fleet.Worker, id fleet.WorkerID) int { return cmp.Compare(x.ID, id) })
	workers := make([]fleet.Worker, 0, len(old)+1)
	workers = append(append(workers, old[:i]...), w)
	if found {
		i++
	}
	m.view.Store(fleet.NewView(index, append(workers, old[i:]...)))
}
