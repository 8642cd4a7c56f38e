package planner

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/core/table"
	"github.com/yardmaster/yardmaster/core/wire/control"
)

// checksums remembers the sums of what changes seldom.
type checksums struct {
	view       *fleet.View // that workers is of
	workers    uint64
	memberRows table.Table[*Member] // that members is of
	members    uint64
	versions   sumOf[*rollout.Version]
	bindings   sumOf[*rollout.Binding]
}

// sumOf is the sum of rows that it remembers.
type sumOf[V any] struct {
	rows []table.Row[V]
	sum  uint64
}

// of is the sum of rows, which are read if they are others than the last time. The
// sum of no rows is 0, whether there were any before or not: it depends on rows
// alone, never on when sums were taken.
func (c *sumOf[V]) of(rows []table.Row[V], message func(V) proto.Message) uint64 {
	if len(rows) == 0 {
		*c = sumOf[V]{}
		return 0
	}
	if len(rows) != len(c.rows) || &rows[0] != &c.rows[0] {
		var s summer
		for _, row := range rows {
			s.message(message(row.Value))
		}
		c.rows, c.sum = rows, s.sum()
	}
	return c.sum
}

// Checksum covers all that Digest covers and is quick enough to be taken between
// two entries: what has not changed since the last one is not read again. Nodes
// that have applied the same entries have the same checksum. It finds replicas
// that parted; against bytes that an adversary chose there is Digest. It belongs
// to the goroutine of Apply.
func (m *Machine) Checksum() uint64 {
	var s summer
	meta, view := m.meta.Load(), m.View()
	s.text(meta.clusterID)
	s.numbers(uint64(meta.featureLevel), m.applied, view.Index, m.workersSum(view), m.membersSum())
	for _, row := range m.registers.Load().Rows() {
		s.text(row.Key)
		s.numbers(row.Value.Version, row.Value.sum)
	}
	s.end()
	for _, row := range m.quotas.Load().Tenants() {
		t := row.Value
		s.text(row.Key)
		s.numbers(uint64(t.Limit), t.Window, uint64(len(t.Grants)))
		for _, g := range t.Grants {
			s.text(g.Holder)
			s.numbers(uint64(g.Tokens))
		}
	}
	s.end()
	m.sumLevel3(&s)
	for i := range m.seen.ring {
		s.request(&m.seen.ring[(m.seen.next+i)%len(m.seen.ring)])
	}
	return s.sum()
}

// sumLevel3 adds policies and the plan. Where there are none it adds nothing: sums
// are those of a binary that knows no level above 2.
func (m *Machine) sumLevel3(s *summer) {
	t, p := m.rollout.Load(), m.plan.Load()
	if t.Index() == 0 && p == nil {
		return
	}
	versions, bindings, states := t.Rows()
	s.numbers(
		t.Index(),
		m.sums.versions.of(versions, func(v *rollout.Version) proto.Message { return fromVersion(v) }),
		m.sums.bindings.of(bindings, func(b *rollout.Binding) proto.Message { return fromBinding("", b) }),
	)
	for _, row := range states {
		s.text(row.Key)
		s.numbers(row.Value.Index(), uint64(row.Value.Len()), row.Value.Sum())
	}
	s.end()
	if p != nil {
		s.numbers(p.index)
		s.message(fromPlan(&p.Plan))
	}
	s.end()
}

func (m *Machine) workersSum(v *fleet.View) uint64 {
	if m.sums.view != v {
		var s summer
		for i := range v.Workers {
			s.message(control.FromWorker(&v.Workers[i]))
		}
		m.sums.view, m.sums.workers = v, s.sum()
	}
	return m.sums.workers
}

func (m *Machine) membersSum() uint64 {
	if rows := *m.members.Load(); m.sums.members == 0 || !rows.Same(m.sums.memberRows) {
		var s summer
		for _, row := range rows.Rows() {
			s.message(fromMember(row.Value))
		}
		m.sums.memberRows, m.sums.members = rows, s.sum()
	}
	return m.sums.members
}

// summer hashes a sequence of texts and numbers so that no two sequences are
// written alike.
type summer struct {
	hash xxhash.Digest
	buf  []byte
	open bool // hash has begun
}

// flushAt is how much is gathered before it is hashed.
const flushAt = 4096

func (s *summer) flush() {
	if !s.open {
		s.open = true
		s.hash.Reset()
	}
	_, _ = s.hash.Write(s.buf) // never fails
	s.buf = s.buf[:0]
}

func (s *summer) numbers(values ...uint64) {
	for _, v := range values {
		s.buf = binary.LittleEndian.AppendUint64(s.buf, v)
	}
	if len(s.buf) >= flushAt {
		s.flush()
	}
}

func (s *summer) text(text string) {
	s.numbers(uint64(len(text)))
	s.buf = append(s.buf, text...)
}

// end closes a list: no text is so long.
func (s *summer) end() { s.numbers(^uint64(0)) }

func (s *summer) message(m proto.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		// The state came from entries of bounded size and valid UTF-8.
		panic(fmt.Sprintf("planner: state does not encode: %v", err))
	}
	s.numbers(uint64(len(b)))
	s.buf = append(s.buf, b...)
}

func (s *summer) request(r *remembered) {
	s.buf = append(s.buf, r.id[:]...)
	changed := uint64(0)
	if r.res.Changed {
		changed = 1
	}
	s.numbers(r.res.Index, uint64(r.res.Code), uint64(r.res.Epoch), changed, r.res.Version, uint64(r.res.Granted))
}

func (s *summer) sum() uint64 {
	s.flush()
	return s.hash.Sum64()
}
