package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func digest(name string) Digest { return DigestOf([]byte(name)) }

func version(policy, release string, kind Kind) Version {
	return Version{
		Policy: policy, Release: release, Kind: kind, Digest: digest(policy + "@" + release), Size: 1000, Signer: "ops", Report: `{"ok":true}`, Created: 5,
	}
}

// plainBinding is a binding as one would write it down without care for sharing.
type plainBinding struct {
	active, shadow, canary Stage
	share                  float64
	previous               []Stage
	pinned                 bool
}

type plain struct {
	versions map[Digest]*Version
	bindings map[string]*plainBinding
}

func (p *plain) uses(s Stage, d Digest) bool {
	for _, part := range s.Parts {
		if part.Version == d {
			return true
		}
	}
	return false
}

func (p *plain) any(s Stage, f func(*Version) bool) bool {
	for _, part := range s.Parts {
		if v := p.versions[part.Version]; v != nil && f(v) {
			return true
		}
	}
	return false
}

func quarantined(v *Version) bool { return v.Quarantined > 0 }

// drop takes a version out of all bindings.
func (p *plain) drop(d Digest) {
	for _, b := range p.bindings {
		if p.uses(b.shadow, d) {
			b.shadow = Stage{}
		}
		if p.uses(b.canary, d) {
			b.canary, b.share = Stage{}, 0
		}
		var kept []Stage
		for _, s := range b.previous {
			if !p.uses(s, d) {
				kept = append(kept, s)
			}
		}
		b.previous = kept
		if p.uses(b.active, d) && !p.any(b.active, func(v *Version) bool { return v.FailClosed }) {
			b.active = Stage{}
			if len(kept) > 0 {
				b.active, b.previous = kept[0], kept[1:]
			}
		}
	}
}

func (p *plain) bound(d Digest) bool {
	for _, b := range p.bindings {
		if p.uses(b.active, d) || p.uses(b.shadow, d) || p.uses(b.canary, d) {
			return true
		}
	}
	return false
}

// change is the error a change must get, having done it if there is none.
func (p *plain) change(c Change) error {
	key := string(c.Kind) + "/" + c.Model
	for _, part := range c.Stage.Parts {
		v := p.versions[part.Version]
		switch {
		case part.Version.IsZero():
		case v == nil || v.Policy != part.Policy:
			return ErrUnknown
		case v.Kind != c.Kind:
			return ErrInvalid
		case v.Quarantined > 0:
			return ErrQuarantined
		}
	}
	b, exists := p.bindings[key]
	if !exists {
		b = &plainBinding{}
	}
	if b.pinned && c.Verb != VerbPin && c.Verb != VerbUnpin {
		return ErrPinned
	}
	if !exists && c.Verb >= VerbPin {
		return ErrUnknown
	}
	stage := c.Stage
	if len(stage.Parts) == 0 {
		stage = b.canary
	}
	if len(stage.Parts) == 0 {
		stage = b.shadow
	}
	switch c.Verb {
	case VerbShadow:
		b.shadow = c.Stage
	case VerbCanary:
		switch {
		case c.Share == 0:
			b.canary, b.share = Stage{}, 0
		case len(stage.Parts) == 0:
			return ErrNothing
		default:
			b.canary, b.share = stage, c.Share
			if b.shadow.Equal(stage) {
				b.shadow = Stage{}
			}
		}
	case VerbPromote:
		if len(stage.Parts) == 0 {
			return ErrNothing
		}
		if !stage.Equal(b.active) {
			if !p.any(b.active, quarantined) {
				b.previous = append([]Stage{b.active}, b.previous...)
			}
			b.previous = b.previous[:min(len(b.previous), MaxPrevious)]
			b.active = stage
		}
		b.canary, b.share = Stage{}, 0
		if b.shadow.Equal(stage) {
			b.shadow = Stage{}
		}
	case VerbRollback:
		switch {
		case len(b.canary.Parts) > 0:
			b.canary, b.share = Stage{}, 0
		case len(b.previous) == 0:
			return ErrNothing
		default:
			b.active, b.previous = b.previous[0], b.previous[1:]
		}
	case VerbPin:
		b.pinned = true
	case VerbUnpin:
		b.pinned = false
	case VerbClear:
		delete(p.bindings, key)
		return nil
	}
	if exists || len(b.active.Parts)+len(b.shadow.Parts)+len(b.canary.Parts) > 0 {
		p.bindings[key] = b // a verb that changes nothing makes no binding
	}
	return nil
}

var (
	policyNames = rapid.SampledFrom([]string{"a", "b", "c"})
	releases    = rapid.SampledFrom([]string{"1", "2", "3"})
	models      = rapid.SampledFrom([]string{"", "m1", "m2"})
)

// kindOf is the kind of the test's policies.
func kindOf(policy string) Kind {
	if policy == "c" {
		return Admission
	}
	return Router
}

func drawStage(t *rapid.T) Stage {
	var s Stage
	for range rapid.IntRange(0, 2).Draw(t, "parts") {
		name := policyNames.Draw(t, "policy")
		d := digest(name + "@" + releases.Draw(t, "release"))
		if rapid.IntRange(0, 4).Draw(t, "native") == 0 {
			d = Digest{}
		}
		p := NewPart(name, d, rapid.Float64Range(0.1, 3).Draw(t, "weight"), Param{"x", rapid.Float64Range(-1, 1).Draw(t, "x")})
		if !slices.ContainsFunc(s.Parts, func(q Part) bool { return q.Policy == p.Policy && q.Version == p.Version }) {
			s.Parts = append(s.Parts, p)
		}
	}
	return s
}

func drawChange(t *rapid.T) Change {
	c := Change{
		Kind: rapid.SampledFrom([]Kind{Router, Router, Admission}).Draw(t, "kind"), Model: models.Draw(t, "model"),
		Verb: Verb(rapid.IntRange(int(VerbShadow), int(VerbClear)).Draw(t, "verb")),
	}
	if c.Verb <= VerbPromote {
		c.Stage = drawStage(t)
	}
	if c.Verb == VerbCanary {
		c.Share = rapid.SampledFrom([]float64{0, 0.05, 0.5, 1}).Draw(t, "share")
	}
	return c
}

type world struct {
	table *Table
	plain plain
	index uint64
	held  *Table // seen earlier, and what it was
	copy  []Binding
}

func (w *world) expect(t *rapid.T, what string, got, want error) {
	if !errors.Is(got, want) || (got == nil) != (want == nil) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func (w *world) put(t *rapid.T) {
	name, release := policyNames.Draw(t, "policy"), releases.Draw(t, "release")
	v := version(name, release, kindOf(name))
	v.FailClosed = v.Kind == Admission && release != "1"
	w.index++
	next, err := w.table.Put(v, w.index)
	old := w.plain.versions[v.Digest]
	switch {
	case old != nil && old.Quarantined > 0:
		w.expect(t, "put again", err, ErrQuarantined)
	case old == nil:
		w.expect(t, "put", err, nil)
		v.Index = w.index
		w.plain.versions[v.Digest] = &v
	default:
		w.expect(t, "put again", err, nil)
		if next != w.table {
			t.Fatal("putting again changed the table")
		}
	}
	w.table = next
}

func (w *world) remove(t *rapid.T) {
	d := digest(policyNames.Draw(t, "policy") + "@" + releases.Draw(t, "release"))
	w.index++
	next, err := w.table.Delete(d, w.index)
	if w.plain.bound(d) {
		w.expect(t, "delete", err, ErrBound)
		return
	}
	w.expect(t, "delete", err, nil)
	delete(w.plain.versions, d)
	w.plain.drop(d)
	w.table = next
}

func (w *world) quarantine(t *rapid.T) {
	d := digest(policyNames.Draw(t, "policy") + "@" + releases.Draw(t, "release"))
	w.index++
	next, err := w.table.Quarantine(d, "traps", w.index)
	v := w.plain.versions[d]
	if v == nil {
		w.expect(t, "quarantine", err, ErrUnknown)
		return
	}
	w.expect(t, "quarantine", err, nil)
	if v.Quarantined == 0 {
		v.Quarantined, v.Reason = w.index, "traps"
		w.plain.drop(d)
	} else if next != w.table {
		t.Fatal("a second quarantine changed the table")
	}
	w.table = next
}

func (w *world) change(t *rapid.T) {
	c := drawChange(t)
	before, _ := w.table.Binding(c.Kind, c.Model)
	if rapid.IntRange(0, 3).Draw(t, "cas") == 0 {
		c.IfIndex = new(before.Index + rapid.Uint64Range(0, 1).Draw(t, "off"))
		if *c.IfIndex != before.Index {
			_, err := w.table.Change(c, w.index+1)
			w.expect(t, "another index", err, ErrConflict)
			return
		}
	}
	w.index++
	next, err := w.table.Change(c, w.index)
	w.expect(t, fmt.Sprintf("%v of %v", c.Verb, c.Stage), err, w.plain.change(c))
	after, there := next.Binding(c.Kind, c.Model)
	switch {
	case next == w.table:
	case there && after.Index != w.index, next.Index() != w.index:
		t.Fatalf("%v at %d gave index %d", c.Verb, w.index, after.Index)
	case c.Verb == VerbPromote && !after.Active.Equal(before.Active) && !w.plain.any(before.Active, quarantined):
		back, err := next.Change(Change{Kind: c.Kind, Model: c.Model, Verb: VerbRollback}, w.index+1)
		w.expect(t, "rollback", err, nil)
		b, _ := back.Binding(c.Kind, c.Model)
		lost := min(len(before.Previous), MaxPrevious-1)
		if !b.Active.Equal(before.Active) || !slices.EqualFunc(b.Previous, before.Previous[:lost], Stage.Equal) {
			t.Fatalf("rollback gave %v, before the promotion there was %v", b.Active, before.Active)
		}
	}
	w.table = next
}

func (w *world) check(t *rapid.T) {
	if diff := cmp.Diff(w.copy, w.held.Bindings(), cmpopts.EquateEmpty()); diff != "" {
		t.Fatal("an old table changed:", diff)
	}
	if len(w.table.Versions()) != len(w.plain.versions) || len(w.table.Bindings()) != len(w.plain.bindings) {
		t.Fatalf("%d versions and %d bindings, want %d and %d", len(w.table.Versions()), len(w.table.Bindings()), len(w.plain.versions), len(w.plain.bindings))
	}
	for _, v := range w.table.Versions() {
		if diff := cmp.Diff(*w.plain.versions[v.Digest], v); diff != "" {
			t.Fatal(diff)
		}
	}
	for _, b := range w.table.Bindings() {
		p := w.plain.bindings[string(b.Kind)+"/"+b.Model]
		got := plainBinding{b.Active, b.Shadow, b.Canary, b.CanaryShare, b.Previous, b.Pinned}
		if diff := cmp.Diff(*p, got, cmp.AllowUnexported(plainBinding{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		w.checkParts(t, b)
	}
}

// checkParts: nothing is bound, or can be gone back to, that is deleted or
// quarantined, but for what fails closed.
func (w *world) checkParts(t *rapid.T, b Binding) {
	for i, s := range append([]Stage{b.Active, b.Shadow, b.Canary}, b.Previous...) {
		stays := i == 0 && w.plain.any(s, func(v *Version) bool { return v.FailClosed })
		for _, p := range s.Parts {
			if v, ok := w.table.Version(p.Version); !p.Native() && (!ok || v.Quarantined > 0 && !stays || v.Kind != b.Kind) {
				t.Fatalf("%s has %s, which is %+v", b.name(), p.Policy, v)
			}
		}
	}
	if len(b.Previous) > MaxPrevious || b.Canary.Empty() != (b.CanaryShare == 0) || b.Index > w.table.Index() {
		t.Fatalf("%+v", b)
	}
}

// checkLoad: a table can be read back from its rows.
func (w *world) checkLoad(t *rapid.T) {
	back, err := reload(w.table)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w.table, back, cmp.AllowUnexported(Table{}), tables, cmpopts.EquateEmpty()); diff != "" {
		t.Fatal(diff)
	}
}

// tables compares what a table shows.
var tables = cmp.Transformer("shown", func(t *Table) any {
	type state struct {
		Index uint64
		Rows  map[string]string
	}
	states := map[string]state{}
	_, _, rows := t.Rows()
	for _, row := range rows {
		s := state{row.Value.Index(), map[string]string{}}
		for k, v := range row.Value.All() {
			s.Rows[k] = string(v)
		}
		states[row.Key] = s
	}
	return []any{t.index, t.bytes, t.held, t.Versions(), t.Bindings(), states}
})

func reload(t *Table) (*Table, error) {
	var l Loader
	versions, bindings, states := t.Rows()
	for _, row := range versions {
		if err := l.Version(*row.Value); err != nil {
			return nil, err
		}
	}
	for _, row := range bindings {
		if err := l.Binding(*row.Value); err != nil {
			return nil, err
		}
	}
	for _, row := range states {
		if err := l.State(row.Key, row.Value.Index()); err != nil {
			return nil, err
		}
		for k, v := range row.Value.All() {
			if err := l.StateRow(k, v); err != nil {
				return nil, err
			}
		}
	}
	return l.Table(t.Index())
}

// Random histories against a plain model.
func TestTableMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{table: &Table{}, held: &Table{}, plain: plain{map[Digest]*Version{}, map[string]*plainBinding{}}}
		t.Repeat(map[string]func(*rapid.T){
			"put":        w.put,
			"put more":   w.put,
			"delete":     w.remove,
			"quarantine": w.quarantine,
			"change":     w.change,
			"change 2":   w.change,
			"change 3":   w.change,
			"hold":       func(*rapid.T) { w.held, w.copy = w.table, w.table.Bindings() },
			"load":       w.checkLoad,
			"":           w.check,
		})
	})
}

// must is for steps that a test takes for granted.
func must(t *testing.T) func(*Table, error) *Table {
	return func(next *Table, err error) *Table {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
}

func part(policy, release string) Stage {
	return Stage{[]Part{NewPart(policy, digest(policy+"@"+release), 1)}}
}

// The life of a version as an operator lives it.
func TestLifeOfAPolicy(t *testing.T) {
	ok := must(t)
	tab := ok((&Table{}).Put(version("kv", "1", Router), 1))
	tab = ok(tab.Put(version("kv", "2", Router), 2))
	do := func(index uint64, c Change) {
		t.Helper()
		c.Kind = Router
		tab = ok(tab.Change(c, index))
	}
	do(3, Change{Verb: VerbPromote, Stage: part("kv", "1")})
	do(4, Change{Verb: VerbShadow, Stage: part("kv", "2")})
	do(5, Change{Verb: VerbCanary, Share: 0.05}) // the shadow
	if r := tab.Resolve(Router, "any"); !r.Canary.Equal(part("kv", "2")) || !r.Shadow.Empty() || r.Index != 5 {
		t.Errorf("%+v: what decides is no shadow any more", r)
	}
	do(6, Change{Verb: VerbPromote}) // the canary
	if b, _ := tab.Binding(Router, ""); !b.Active.Equal(part("kv", "2")) || !b.Shadow.Empty() || !b.Canary.Empty() || len(b.Previous) != 2 {
		t.Errorf("%+v", b)
	}
	if _, err := tab.Delete(digest("kv@2"), 7); !errors.Is(err, ErrBound) || !strings.Contains(err.Error(), "kv@2 is bound as the router of all models") {
		t.Error(err)
	}
	do(8, Change{Verb: VerbPin})
	if _, err := tab.Change(Change{Kind: Router, Verb: VerbRollback}, 9); !errors.Is(err, ErrPinned) {
		t.Error(err)
	}
	tab = ok(tab.Quarantine(digest("kv@2"), "5 traps in 30 s", 10)) // pinned or not
	if b, _ := tab.Binding(Router, ""); !b.Active.Equal(part("kv", "1")) || b.Index != 10 || !b.Pinned {
		t.Errorf("%+v", b)
	}
	if _, err := tab.Find("kv@2"); err != nil {
		t.Error(err)
	}
	if v, err := tab.Find("kv"); err != nil || v.Release != "1" {
		t.Errorf("%+v, %v: a quarantined version is not the newest in order", v, err)
	}
	tab = ok(tab.Quarantine(digest("kv@1"), "traps", 11))
	if _, err := tab.Find("kv"); !errors.Is(err, ErrQuarantined) {
		t.Error(err)
	}
	if v, err := tab.Look("kv"); err != nil || v.Release != "2" || v.Quarantined != 10 {
		t.Errorf("looked at: %+v, %v", v, err)
	}
	if b, _ := tab.Binding(Router, ""); !b.Active.Empty() || len(b.Previous) != 0 {
		t.Errorf("no good version is left: %+v", b)
	}
}

// Whoever makes the guard trip does not get past it: only an operator removes it.
func TestWhatFailsClosedStaysBound(t *testing.T) {
	ok := must(t)
	guard := version("guard", "1", Admission)
	guard.FailClosed = true
	tab := ok((&Table{}).Put(version("lax", "1", Admission), 1))
	tab = ok(tab.Put(guard, 2))
	for i, stage := range []Stage{part("lax", "1"), {Parts: []Part{NewPart("lax", digest("lax@1"), 1), NewPart("guard", digest("guard@1"), 1)}}} {
		tab = ok(tab.Change(Change{Kind: Admission, Verb: VerbPromote, Stage: stage}, uint64(3+i)))
	}
	pair, _ := tab.Binding(Admission, "")
	for _, d := range []string{"lax@1", "guard@1"} { // the other one of the stage does not open it either
		fallen := ok(tab.Quarantine(digest(d), "traps", 9))
		if b, _ := fallen.Binding(Admission, ""); !b.Active.Equal(pair.Active) {
			t.Errorf("%s in quarantine: %v is active", d, b.Active)
		}
		if _, err := reload(fallen); err != nil {
			t.Error(err)
		}
	}
	tab = ok(tab.Quarantine(digest("guard@1"), "traps", 10))
	if _, err := tab.Delete(digest("guard@1"), 11); !errors.Is(err, ErrBound) {
		t.Error(err)
	}
	back := ok(tab.Change(Change{Kind: Admission, Verb: VerbRollback}, 12))
	if b, _ := back.Binding(Admission, ""); !b.Active.Equal(part("lax", "1")) {
		t.Errorf("rolled back: %+v", b)
	}
	other := ok(tab.Change(Change{Kind: Admission, Verb: VerbPromote, Stage: part("lax", "1")}, 13))
	if b, _ := other.Binding(Admission, ""); len(b.Previous) != 2 || !b.Previous[0].Equal(part("lax", "1")) {
		t.Errorf("there is a way back to the quarantined: %+v", b.Previous)
	}
	if cleared := ok(tab.Change(Change{Kind: Admission, Verb: VerbClear}, 14)); len(cleared.Bindings()) != 0 {
		t.Error("not cleared")
	}
	wrong := version("kv", "1", Router)
	wrong.FailClosed = true
	if _, err := tab.Put(wrong, 15); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestResolve(t *testing.T) {
	ok := must(t)
	tab := &Table{}
	for i, r := range []string{"1", "2", "3"} {
		tab = ok(tab.Put(version("kv", r, Router), uint64(i+1)))
	}
	if r := tab.Resolve(Router, "m"); r.Index != 0 || !r.Active.Empty() || r.Canaried(1) {
		t.Errorf("nothing is bound: %+v", r)
	}
	tab = ok(tab.Change(Change{Kind: Router, Verb: VerbPromote, Stage: part("kv", "1")}, 10))
	tab = ok(tab.Change(Change{Kind: Router, Verb: VerbCanary, Stage: part("kv", "2"), Share: 0.5}, 11))
	tab = ok(tab.Change(Change{Kind: Router, Model: "m", Verb: VerbShadow, Stage: part("kv", "3")}, 12))
	r := tab.Resolve(Router, "m")
	if !r.Active.Equal(part("kv", "1")) || !r.Canary.Equal(part("kv", "2")) || !r.Shadow.Equal(part("kv", "3")) || r.Index != 12 {
		t.Errorf("a shadow of its own leaves the rest: %+v", r)
	}
	if r := tab.Resolve(Router, "other"); !r.Shadow.Empty() || r.Index != 11 {
		t.Errorf("another model: %+v", r)
	}
	tab = ok(tab.Change(Change{Kind: Router, Model: "m", Verb: VerbPromote}, 13))
	if r := tab.Resolve(Router, "m"); !r.Active.Equal(part("kv", "3")) || !r.Canary.Empty() || r.Index != 13 {
		t.Errorf("a stage of its own is no part of others' canary: %+v", r)
	}
	tab = ok(tab.Change(Change{Kind: Router, Model: "m", Verb: VerbRollback}, 14))
	if r := tab.Resolve(Router, "m"); !r.Active.Equal(part("kv", "1")) || r.Index != 14 {
		t.Errorf("back to nothing of its own: %+v", r)
	}
}

// Who is in a canary stays in while its share grows, and the share is what was
// asked for.
func TestCanaryIsStable(t *testing.T) {
	ok := must(t)
	tab := ok((&Table{}).Put(version("kv", "1", Router), 1))
	shares := []float64{0.001, 0.05, 0.25, 0.5, 0.999, 1}
	const sessions = 100_000
	in := make([]bool, sessions)
	for i, share := range shares {
		tab = ok(tab.Change(Change{Kind: Router, Verb: VerbCanary, Stage: part("kv", "1"), Share: share}, uint64(i+2)))
		r := tab.Resolve(Router, "")
		n := 0
		for s := range uint64(sessions) { // small numbers: as bad a hash as can be
			now := r.Canaried(s)
			if in[s] && !now {
				t.Fatalf("session %d left at %v", s, share)
			}
			if in[s] = now; now {
				n++
			}
		}
		if got := float64(n) / sessions; got < share*0.8-0.0005 || got > share*1.2+0.0005 {
			t.Errorf("share %v took in %v", share, got)
		}
	}
}

func TestStateMatchesModel(t *testing.T) {
	keys := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	rapid.Check(t, func(t *rapid.T) {
		tab, _ := (&Table{}).Put(version("p", "1", Observer), 1)
		plain := map[string][]byte{}
		for index := range rapid.Uint64Range(2, 12).Draw(t, "batches") {
			var writes []Write
			for range rapid.IntRange(1, 6).Draw(t, "writes") {
				w := Write{Op: WriteOp(rapid.IntRange(1, 3).Draw(t, "op")), Key: keys.Draw(t, "key")}
				switch w.Op {
				case WriteSet:
					w.Value = rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "value")
					plain[w.Key] = w.Value
				case WriteAdd:
					w.Delta = rapid.Int64().Draw(t, "delta")
					plain[w.Key] = NumberValue(Number(plain[w.Key]) + w.Delta)
				case WriteDelete:
					delete(plain, w.Key)
				}
				writes = append(writes, w)
			}
			next, err := tab.WriteState("p", writes, index+2)
			if err != nil {
				t.Fatal(err)
			}
			if !next.Same(tab) {
				t.Fatal("a write to the state counts as another binding")
			}
			tab = next
			s, bytes := tab.State("p"), 0
			for k, v := range plain {
				if got, ok := s.Get(k); !ok || string(got) != string(v) {
					t.Fatalf("%s: %x, %v; want %x", k, got, ok, v)
				}
				bytes += len(k) + len(v)
			}
			if s.Len() != len(plain) || s.bytes != bytes || tab.held != bytes {
				t.Fatalf("%d keys, %d bytes; want %d, %d", s.Len(), s.bytes, len(plain), bytes)
			}
			back, err := reload(tab)
			if err != nil || back.State("p").Sum() != s.Sum() {
				t.Fatal("the sum depends on the history", err)
			}
		}
		gone, err := tab.Delete(digest("p@1"), 100)
		if err != nil || gone.State("p") != nil || gone.held != 0 {
			t.Fatal("the state outlived its policy", err)
		}
	})
}
