package planner

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// writeLevel2 writes what came with feature level 2. Where there is nothing of
// it, its sections are absent.
func (s *Snapshot) writeLevel2(sw *sectionWriter) {
	for rest := s.registers.Rows(); len(rest) > 0; {
		var m control.RegistersSection
		m.Registers, rest = nextRun(rest, fromRegister)
		sw.message(sectionRegisters, &m)
	}
	for rest := s.quotas.Tenants(); len(rest) > 0; {
		var m control.QuotasSection
		m.Tenants, rest = nextRun(rest, fromTenant)
		sw.message(sectionQuotas, &m)
	}
	for rest := s.members.Rows(); len(rest) > 0; {
		var m control.MembersSection
		m.Members, rest = nextRun(rest, func(_ string, member *Member) *control.Member { return fromMember(member) })
		sw.message(sectionMembers, &m)
	}
}

// nextRun takes rows until the section is full by number or size, and returns
// the ones left. The largest row is a tenant with all grants there can be, 10
// MB, so a section stays below section.Max.
func nextRun[V any, M proto.Message](rows []table.Row[V], convert func(string, V) M) (run []M, rest []table.Row[V]) {
	size := 0
	for i, row := range rows {
		if i == sectionRun || size > MaxEntry {
			return run, rows[i:]
		}
		m := convert(row.Key, row.Value)
		run, size = append(run, m), size+proto.Size(m)
	}
	return run, nil
}

func fromRegister(_ string, r *register) *control.Register {
	return &control.Register{Key: r.Key, Value: r.Value, Version: r.Version}
}

func fromTenant(name string, t *quota.Tenant) *control.TenantQuota {
	m := &control.TenantQuota{Tenant: name, Limit: int64(t.Limit), Window: t.Window}
	for _, g := range t.Grants {
		m.Grants = append(m.Grants, &control.QuotaGrant{Holder: g.Holder, Tokens: int64(g.Tokens)})
	}
	return m
}

// level2 reads a section of feature level 2.
func (l *loader) level2(t sectionType, payload []byte) error {
	if l.meta.featureLevel < 2 {
		return fmt.Errorf("%w: section %d at feature level %d", ErrMalformed, t, l.meta.featureLevel)
	}
	switch t {
	case sectionRegisters:
		return l.addRegisters(payload)
	case sectionQuotas:
		return l.addQuotas(payload)
	default:
		return l.addMembers(payload)
	}
}

func (l *loader) addRegisters(payload []byte) error {
	var m control.RegistersSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetRegisters() {
		r := newRegister(pb.GetKey(), pb.GetValue(), pb.GetVersion())
		next, inOrder := l.registers.Append(r.Key, r)
		sound := soundKey(r.Key) && len(r.Value) <= MaxRegisterValue && r.Version > 0 && r.Version <= l.applied
		if !inOrder || !sound || next.Len() > MaxRegisters {
			return fmt.Errorf("%w: register %q of version %d", ErrMalformed, r.Key, r.Version)
		}
		l.registers = next
	}
	return nil
}

func (l *loader) addQuotas(payload []byte) error {
	var m control.QuotasSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetTenants() {
		t := quota.Tenant{Limit: unit.Tokens(pb.GetLimit()), Window: pb.GetWindow()}
		sound := soundName(pb.GetTenant())
		for _, g := range pb.GetGrants() {
			t.Grants = append(t.Grants, quota.Grant{Holder: g.GetHolder(), Tokens: unit.Tokens(g.GetTokens())})
			sound = sound && soundName(g.GetHolder())
		}
		next, ok := l.quotas.Load(pb.GetTenant(), t)
		if !ok || !sound {
			return fmt.Errorf("%w: quota of tenant %q", ErrMalformed, pb.GetTenant())
		}
		l.quotas = next
	}
	return nil
}

func (l *loader) addMembers(payload []byte) error {
	var m control.MembersSection
	if err := unmarshal(payload, &m); err != nil {
		return err
	}
	for _, pb := range m.GetMembers() {
		member, err := toMember(pb)
		if err != nil {
			return err
		}
		next, inOrder := l.members.Append(member.ID, &member)
		if !inOrder || !member.sound() || member.Index == 0 || member.Index > l.applied || next.Len() > MaxMembers {
			return fmt.Errorf("%w: member %q", ErrMalformed, member.ID)
		}
		l.members = next
	}
	return nil
}
