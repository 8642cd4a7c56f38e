package planner

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// Bounds of the state that came with feature level 2, in entries or bytes. They
// belong to its entries and cannot change: replicas would disagree.
const (
	MaxRegisters     = 1024
	MaxRegisterKey   = 256
	MaxRegisterValue = 64 << 10
	MaxMembers       = 1024

	maxName    = 128 // tenant, holder, incarnation, release
	maxNodeID  = fleet.MaxNodeID
	maxAddress = 512
)

// SetRegister writes a small value under a key. Its version becomes the entry's
// index.
type SetRegister struct {
	Key   string
	Value []byte
	// IfVersion makes it a compare-and-swap: the command gets [Conflict] unless
	// the register has that version, 0 meaning that it does not exist.
	IfVersion *uint64
}

// DeleteRegister removes a register. One that does not exist is no fault.
type DeleteRegister struct {
	Key       string
	IfVersion *uint64 // as in SetRegister
}

// SetQuota sets how many tokens a tenant may be granted in a window; see
// [quota.Ledger.Set].
type SetQuota struct {
	Tenant string
	Limit  unit.Tokens
}

// DropQuota ends a tenant's quota with all that is granted of it.
type DropQuota struct{ Tenant string }

// GrantQuota gives a holder up to Tokens of a tenant's window. Result.Granted
// says how many, perhaps none. Window is the number of the window by the
// proposer's clock; see [quota.Ledger.Grant].
type GrantQuota struct {
	Tenant, Holder string
	Window         uint64
	Tokens         unit.Tokens
}

// ReturnQuota gives back tokens that the holder did not spend. Result.Granted
// says how many were taken back.
type ReturnQuota struct {
	Tenant, Holder string
	Window         uint64
	Tokens         unit.Tokens
}

// EndHolder returns the grants of a holder that is gone. Result.Granted says
// how much that was.
type EndHolder struct{ Holder string }

// PutMember records a node of the cluster as it describes itself, in place of
// an earlier record. Member.Index is ignored.
type PutMember struct{ Member }

// DropMember removes a node's record: if Incarnation is given, only that one's,
// another gets [Conflict]. A record that does not exist is no fault.
type DropMember struct{ ID, Incarnation string }

// Kinds of feature level 2.
const (
	kindSetRegister    kind = 7
	kindDeleteRegister kind = 8
	kindSetQuota       kind = 9
	kindDropQuota      kind = 10
	kindGrantQuota     kind = 11
	kindReturnQuota    kind = 12
	kindEndHolder      kind = 13
	kindPutMember      kind = 14
	kindDropMember     kind = 15
)

// level is the least feature level at which an entry of the kind may stand in
// the log.
func (k kind) level() uint32 {
	switch {
	case k >= kindSetRegister && k <= kindDropMember:
		return 2
	case k >= kindPutPolicy && k <= kindSetScalePlan:
		return 3
	}
	return 1
}

// decodeBody2 reads the body of a kind of feature level 2.
func decodeBody2(k kind, body []byte) (Command, error) {
	switch k {
	case kindSetRegister:
		var m control.SetRegisterBody
		err := unmarshal(body, &m)
		return SetRegister{Key: m.GetKey(), Value: m.GetValue(), IfVersion: m.IfVersion}, err
	case kindDeleteRegister:
		var m control.DeleteRegisterBody
		err := unmarshal(body, &m)
		return DeleteRegister{Key: m.GetKey(), IfVersion: m.IfVersion}, err
	case kindPutMember:
		return decodePutMember(body)
	case kindDropMember:
		var m control.DropMemberBody
		err := unmarshal(body, &m)
		return DropMember{ID: m.GetId(), Incarnation: m.GetIncarnation()}, err
	default:
		return decodeQuota(k, body)
	}
}

func decodePutMember(body []byte) (Command, error) {
	var m control.Member
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	member, err := toMember(&m)
	member.Index = 0
	return PutMember{member}, err
}

// decodeQuota reads the body of a kind that is about quotas.
func decodeQuota(k kind, body []byte) (Command, error) {
	if k == kindGrantQuota || k == kindReturnQuota {
		return decodeMove(k, body)
	}
	if k == kindSetQuota {
		var m control.SetQuotaBody
		err := unmarshal(body, &m)
		return SetQuota{Tenant: m.GetTenant(), Limit: unit.Tokens(m.GetLimit())}, err
	}
	if k == kindDropQuota {
		var m control.DropQuotaBody
		err := unmarshal(body, &m)
		return DropQuota{Tenant: m.GetTenant()}, err
	}
	var m control.EndHolderBody
	err := unmarshal(body, &m)
	return EndHolder{Holder: m.GetHolder()}, err
}

// decodeMove reads a grant or a return.
func decodeMove(k kind, body []byte) (Command, error) {
	var m control.QuotaBody
	err := unmarshal(body, &m)
	g := GrantQuota{Tenant: m.GetTenant(), Holder: m.GetHolder(), Window: m.GetWindow(), Tokens: unit.Tokens(m.GetTokens())}
	if k == kindReturnQuota {
		return ReturnQuota(g), err
	}
	return g, err
}

func (SetRegister) kind() kind    { return kindSetRegister }
func (DeleteRegister) kind() kind { return kindDeleteRegister }
func (SetQuota) kind() kind       { return kindSetQuota }
func (DropQuota) kind() kind      { return kindDropQuota }
func (GrantQuota) kind() kind     { return kindGrantQuota }
func (ReturnQuota) kind() kind    { return kindReturnQuota }
func (EndHolder) kind() kind      { return kindEndHolder }
func (PutMember) kind() kind      { return kindPutMember }
func (DropMember) kind() kind     { return kindDropMember }

func (c SetRegister) body() proto.Message {
	return &control.SetRegisterBody{Key: c.Key, Value: c.Value, IfVersion: c.IfVersion}
}

func (c DeleteRegister) body() proto.Message {
	return &control.DeleteRegisterBody{Key: c.Key, IfVersion: c.IfVersion}
}

func (c SetQuota) body() proto.Message {
	return &control.SetQuotaBody{Tenant: c.Tenant, Limit: int64(c.Limit)}
}

func (c DropQuota) body() proto.Message { return &control.DropQuotaBody{Tenant: c.Tenant} }

func (c GrantQuota) body() proto.Message {
	return &control.QuotaBody{Tenant: c.Tenant, Holder: c.Holder, Window: c.Window, Tokens: int64(c.Tokens)}
}

func (c ReturnQuota) body() proto.Message {
	return &control.QuotaBody{Tenant: c.Tenant, Holder: c.Holder, Window: c.Window, Tokens: int64(c.Tokens)}
}

func (c EndHolder) body() proto.Message { return &control.EndHolderBody{Holder: c.Holder} }

func (c PutMember) body() proto.Message {
	m := fromMember(&c.Member)
	m.Index = 0
	return m
}

func (c DropMember) body() proto.Message {
	return &control.DropMemberBody{Id: c.ID, Incarnation: c.Incarnation}
}

func (c SetRegister) validate() error {
	if !c.sound() {
		return fmt.Errorf("register key is empty or longer than %d bytes, or its value of %d bytes is longer than %d", MaxRegisterKey, len(c.Value), MaxRegisterValue)
	}
	return nil
}

func (c DeleteRegister) validate() error {
	if !soundKey(c.Key) {
		return fmt.Errorf("register key is empty or longer than %d bytes", MaxRegisterKey)
	}
	return nil
}

func (c SetQuota) validate() error {
	if !soundName(c.Tenant) || c.Limit < 0 || int64(c.Limit) > quota.MaxTokens {
		return fmt.Errorf("tenant is empty or longer than %d bytes, or the limit of %d tokens is out of range", maxName, c.Limit)
	}
	return nil
}

func (c DropQuota) validate() error   { return validateName("tenant", c.Tenant) }
func (c EndHolder) validate() error   { return validateName("holder", c.Holder) }
func (c GrantQuota) validate() error  { return validateQuota(c.Tenant, c.Holder, c.Tokens) }
func (c ReturnQuota) validate() error { return validateQuota(c.Tenant, c.Holder, c.Tokens) }

func (c PutMember) validate() error { return c.Validate() }

func (c DropMember) validate() error {
	if c.ID == "" || len(c.ID) > maxNodeID || len(c.Incarnation) > maxName {
		return errors.New("member id is missing or too long, or the incarnation is")
	}
	return nil
}

func validateName(what, name string) error {
	if !soundName(name) {
		return fmt.Errorf("%s is empty or longer than %d bytes", what, maxName)
	}
	return nil
}

func validateQuota(tenant, holder string, tokens unit.Tokens) error {
	faults := []error{validateName("tenant", tenant), validateName("holder", holder)}
	if tokens <= 0 {
		faults = append(faults, errors.New("no tokens are named"))
	}
	return errors.Join(faults...)
}

// The rules that Apply enforces; those above may get stricter, these may not.

func (c SetRegister) sound() bool { return soundKey(c.Key) && len(c.Value) <= MaxRegisterValue }

func soundKey(key string) bool { return key != "" && len(key) <= MaxRegisterKey }

func soundName(name string) bool { return name != "" && len(name) <= maxName }
