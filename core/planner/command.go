package planner

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Command is one intended change of the cluster's state. The types of this
// file are all there are.
type Command interface {
	kind() kind
	body() proto.Message
	// validate reports why the command must not be proposed.
	validate() error
}

// RegisterWorker makes Worker a member under a new epoch, the entry's index.
//
// The same incarnation registering again keeps its epoch and its record; it
// can only turn draining on. Another incarnation of the same id supersedes the
// one before, or is refused with [Taken] if IfAbsent. Worker.Epoch is ignored.
type RegisterWorker struct {
	Worker   fleet.Worker
	IfAbsent bool
}

// ExpireWorker ends an incarnation whose lease ran out.
type ExpireWorker struct {
	ID    fleet.WorkerID
	Epoch fleet.Epoch
}

// LeaveWorker ends an incarnation at its own wish.
type LeaveWorker struct {
	ID    fleet.WorkerID
	Epoch fleet.Epoch
}

// DrainWorker takes an incarnation out of new placements. It stays a member.
type DrainWorker struct {
	ID    fleet.WorkerID
	Epoch fleet.Epoch
}

// InitCluster names the cluster. The first name stays; another is refused with
// [Taken].
type InitCluster struct{ ClusterID string }

// SetFeatureLevel raises the level of entry types that proposers may use. It
// never goes down: an older binary could not read what is already in the log.
type SetFeatureLevel struct{ Level uint32 }

// kind is an entry's type byte. Numbers are for ever.
type kind uint8

const (
	kindInitCluster    kind = 1
	kindFeatureLevel   kind = 2
	kindRegisterWorker kind = 3
	kindExpireWorker   kind = 4
	kindLeaveWorker    kind = 5
	kindDrainWorker    kind = 6

	// ignorable marks types that a node which does not know them may skip.
	ignorable kind = 0x80
)

func (RegisterWorker) kind() kind  { return kindRegisterWorker }
func (ExpireWorker) kind() kind    { return kindExpireWorker }
func (LeaveWorker) kind() kind     { return kindLeaveWorker }
func (DrainWorker) kind() kind     { return kindDrainWorker }
func (InitCluster) kind() kind     { return kindInitCluster }
func (SetFeatureLevel) kind() kind { return kindFeatureLevel }

func (c RegisterWorker) body() proto.Message {
	w := control.FromWorker(&c.Worker)
	w.Epoch = 0
	return &control.RegisterWorkerBody{Worker: w, IfAbsent: c.IfAbsent}
}

func (c ExpireWorker) body() proto.Message { return epochBody(c.ID, c.Epoch) }
func (c LeaveWorker) body() proto.Message  { return epochBody(c.ID, c.Epoch) }
func (c DrainWorker) body() proto.Message  { return epochBody(c.ID, c.Epoch) }

func (c InitCluster) body() proto.Message {
	return &control.InitClusterBody{ClusterId: c.ClusterID}
}

func (c SetFeatureLevel) body() proto.Message {
	return &control.SetFeatureLevelBody{Level: c.Level}
}

func epochBody(id fleet.WorkerID, epoch fleet.Epoch) proto.Message {
	return &control.WorkerEpochBody{Id: string(id), Epoch: uint64(epoch)}
}

func (c RegisterWorker) validate() error { return c.Worker.Validate() }
func (c ExpireWorker) validate() error   { return validateEpoch(c.ID, c.Epoch) }
func (c LeaveWorker) validate() error    { return validateEpoch(c.ID, c.Epoch) }
func (c DrainWorker) validate() error    { return validateEpoch(c.ID, c.Epoch) }

func (c InitCluster) validate() error {
	if c.ClusterID == "" || len(c.ClusterID) > 128 {
		return errors.New("cluster id is empty or longer than 128 bytes")
	}
	return nil
}

func (c SetFeatureLevel) validate() error {
	if c.Level > MaxFeatureLevel {
		return fmt.Errorf("feature level %d is above %d, the highest this binary knows", c.Level, MaxFeatureLevel)
	}
	return nil
}

func validateEpoch(id fleet.WorkerID, epoch fleet.Epoch) error {
	if id == "" || epoch == 0 {
		return errors.New("worker id or epoch is missing")
	}
	return nil
}
