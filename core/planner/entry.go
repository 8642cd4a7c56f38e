package planner

import (
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Wire form of an entry:
//
//	byte 0      version, 1
//	byte 1      type; bit 0x80 means that a node may skip it
//	bytes 2-17  request id; all zero means none
//	rest        protobuf body of core/wire/control
const (
	entryVersion = 1
	entryHeader  = 2 + len(RequestID{})
)

// MaxEntry bounds an encoded entry, in bytes. A registration with 1,024 model
// names of 512 bytes fits.
const MaxEntry = 1 << 20

// MaxFeatureLevel is the highest level this binary understands. Level 2 brought
// registers, quotas and members, level 3 policies and the scaling plan.
const MaxFeatureLevel = 3

// RequestID makes repeating a proposal harmless: an entry whose id is
// remembered changes nothing and gets the first one's result. Proposers choose
// it at random; the zero id is never remembered.
type RequestID [16]byte

// String is the id in hex.
func (id RequestID) String() string { return hex.EncodeToString(id[:]) }

var (
	// ErrInvalid means a command that breaks a rule; it was not proposed.
	ErrInvalid = errors.New("invalid command")
	// ErrMalformed means bytes that are not an entry or a snapshot.
	ErrMalformed = errors.New("malformed")
	// ErrUnknownEntry means an entry or section of a newer release that must not
	// be skipped. The node has to stop: applying the rest without it would part
	// it from the others.
	ErrUnknownEntry = errors.New("written by a newer release of yardmaster; upgrade this node")
	// ErrLevel means that the cluster's feature level does not allow the command
	// yet: some member is of a release that could not read it. Nothing was
	// proposed.
	ErrLevel = errors.New("not before every member runs a release that knows it")
)

// Encode validates cmd and gives the entry to propose, if the committed feature
// level allows it. It may be called from anywhere at any time. Errors wrap
// ErrInvalid or ErrLevel.
func (m *Machine) Encode(id RequestID, cmd Command) ([]byte, error) {
	if err := m.allows(cmd.kind()); err != nil {
		return nil, err
	}
	return Encode(id, cmd)
}

// Check reports why an entry that another node encoded must not be proposed
// here: what Encode would have refused. It may be called from anywhere at any
// time. Errors wrap ErrMalformed, ErrUnknownEntry, ErrInvalid, ErrLevel or, see
// [Machine.Windows], ErrClock.
func (m *Machine) Check(entry []byte) error {
	_, cmd, err := decode(entry, m.maxLevel)
	switch {
	case err != nil:
		return err
	case cmd == nil:
		return fmt.Errorf("entry type %d: %w", entry[1], ErrUnknownEntry)
	}
	if err := cmd.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if g, ok := cmd.(GrantQuota); ok && m.present != nil && !quota.Near(g.Window, m.present()) {
		return fmt.Errorf("window %d, at %d: %w", g.Window, m.present(), ErrClock)
	}
	return m.allows(cmd.kind())
}

// Windows has Check compare the windows of grants with the present one by the caller's
// clock; nil compares none. It is called before anything else. Apply never asks it: it
// is for what a leader is about to propose, so that a proposer whose clock is wrong
// shuts nobody out.
func (m *Machine) Windows(present func() uint64) { m.present = present }

func (m *Machine) allows(k kind) error {
	if need, have := k.level(), max(m.FeatureLevel(), 1); need > have {
		return fmt.Errorf("entry type %d needs feature level %d, the cluster is at %d: %w", k, need, have, ErrLevel)
	}
	return nil
}

// Encode validates cmd and encodes it for a cluster of MaxFeatureLevel. To
// propose it use [Machine.Encode], which knows the cluster's. Errors wrap
// ErrInvalid.
func Encode(id RequestID, cmd Command) ([]byte, error) {
	if err := cmd.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	entry := append(make([]byte, 0, 256), entryVersion, byte(cmd.kind()))
	entry = append(entry, id[:]...)
	entry, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(entry, cmd.body())
	if err != nil { // a string that is not UTF-8
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(entry) > MaxEntry {
		return nil, fmt.Errorf("%w: entry of %d bytes is over the limit of %d", ErrInvalid, len(entry), MaxEntry)
	}
	return entry, nil
}

// Decode reads an entry. cmd is nil for an ignorable type it does not know.
// Errors wrap ErrMalformed or ErrUnknownEntry.
func Decode(entry []byte) (id RequestID, cmd Command, err error) {
	return decode(entry, MaxFeatureLevel)
}

// decode is Decode of a binary that knows no level above maxLevel.
func decode(entry []byte, maxLevel uint32) (id RequestID, cmd Command, err error) {
	if len(entry) < entryHeader || len(entry) > MaxEntry {
		return id, nil, fmt.Errorf("%w: entry of %d bytes", ErrMalformed, len(entry))
	}
	version, k := entry[0], kind(entry[1])
	copy(id[:], entry[2:entryHeader])
	if version != entryVersion {
		return id, nil, fmt.Errorf("entry version %d, type %d: %w", version, k, ErrUnknownEntry)
	}
	if k.level() > maxLevel {
		return id, nil, fmt.Errorf("entry type %d: %w", k, ErrUnknownEntry)
	}
	cmd, err = decodeBody(k, entry[entryHeader:])
	return id, cmd, err
}

func decodeBody(k kind, body []byte) (Command, error) {
	switch k {
	case kindInitCluster:
		var m control.InitClusterBody
		err := unmarshal(body, &m)
		return InitCluster{ClusterID: m.GetClusterId()}, err
	case kindFeatureLevel:
		var m control.SetFeatureLevelBody
		err := unmarshal(body, &m)
		return SetFeatureLevel{Level: m.GetLevel()}, err
	case kindRegisterWorker:
		return decodeRegister(body)
	case kindExpireWorker, kindLeaveWorker, kindDrainWorker:
		return decodeEpochCommand(k, body)
	case kindSetRegister, kindDeleteRegister, kindSetQuota, kindDropQuota, kindGrantQuota, kindReturnQuota, kindEndHolder,
		kindPutMember, kindDropMember:
		return decodeBody2(k, body)
	case kindPutPolicy, kindDeletePolicy, kindChangeBinding, kindQuarantinePolicy, kindWritePolicyState, kindSetScalePlan:
		return decodeBody3(k, body)
	case ignorable: // the bit alone is no type
	}
	if k&ignorable != 0 {
		return nil, nil
	}
	return nil, fmt.Errorf("entry type %d: %w", k, ErrUnknownEntry)
}

func decodeRegister(body []byte) (Command, error) {
	var m control.RegisterWorkerBody
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	w, err := control.ToWorker(m.GetWorker())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return RegisterWorker{Worker: w, IfAbsent: m.GetIfAbsent()}, nil
}

func decodeEpochCommand(k kind, body []byte) (Command, error) {
	var m control.WorkerEpochBody
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, epoch := fleet.WorkerID(m.GetId()), fleet.Epoch(m.GetEpoch())
	if k == kindExpireWorker {
		return ExpireWorker{ID: id, Epoch: epoch}, nil
	}
	if k == kindLeaveWorker {
		return LeaveWorker{ID: id, Epoch: epoch}, nil
	}
	return DrainWorker{ID: id, Epoch: epoch}, nil
}

func unmarshal(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}
