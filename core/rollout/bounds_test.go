package rollout

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What is refused is refused with a sentence that says what to do.
func TestChangesThatAreRefused(t *testing.T) {
	ok := must(t)
	tab := ok((&Table{}).Put(version("kv", "1", Router), 1))
	tab = ok(tab.Put(version("gate", "1", Admission), 2))
	tab = ok(tab.Put(version("bad", "1", Router), 3))
	tab = ok(tab.Quarantine(digest("bad@1"), "5 traps in 30 s", 4))
	one := NewPart("kv", digest("kv@1"), 1)
	many := make([]Part, MaxParts+1)
	for i := range many {
		many[i] = NewPart(fmt.Sprint("n", i), Digest{}, 1)
	}
	params := make([]Param, MaxParams+1)
	for i := range params {
		params[i] = Param{fmt.Sprintf("p%03d", i), 1}
	}
	weight := func(w float64) Stage { return Stage{[]Part{NewPart("kv", digest("kv@1"), w)}} }
	for _, tt := range []struct {
		name string
		c    Change
		want error
		says string
	}{
		{"kind", Change{Kind: "x", Verb: VerbPin}, ErrInvalid, "is none of"},
		{"verb", Change{Kind: Router, Verb: 99}, ErrInvalid, "verb 99"},
		{"model that cannot be shown", Change{Kind: Router, Verb: VerbPin, Model: "a\x1b[31m"}, ErrInvalid, "control characters"},
		{"model that is no text", Change{Kind: Router, Verb: VerbPin, Model: "a\xff"}, ErrInvalid, "no text"},
		{"model too long", Change{Kind: Router, Verb: VerbPin, Model: strings.Repeat("m", MaxModel+1)}, ErrInvalid, "512 bytes"},
		{"autoscaler of a model", Change{Kind: Autoscaler, Verb: VerbPromote, Model: "m"}, ErrInvalid, "without --model"},
		{"canary of an autoscaler", Change{Kind: Autoscaler, Verb: VerbCanary, Share: 1}, ErrInvalid, "try shadow"},
		{"shadow of an observer", Change{Kind: Observer, Verb: VerbShadow}, ErrInvalid, "promote it"},
		{"two autoscalers", Change{Kind: Autoscaler, Verb: VerbPromote, Stage: Stage{many[:2]}}, ErrInvalid, "bind one"},
		{"share of a promotion", Change{Kind: Router, Verb: VerbPromote, Share: 0.5}, ErrInvalid, "takes no share"},
		{"share above 1", Change{Kind: Router, Verb: VerbCanary, Share: 1.5, Stage: weight(1)}, ErrInvalid, "from 0 to 1"},
		{"share NaN", Change{Kind: Router, Verb: VerbCanary, Share: math.NaN(), Stage: weight(1)}, ErrInvalid, "from 0 to 1"},
		{"policy of a rollback", Change{Kind: Router, Verb: VerbRollback, Stage: weight(1)}, ErrInvalid, "takes no policy"},
		{"weight 0", Change{Kind: Router, Verb: VerbPromote, Stage: weight(0)}, ErrInvalid, "weight of kv"},
		{"weight NaN", Change{Kind: Router, Verb: VerbPromote, Stage: weight(math.NaN())}, ErrInvalid, "weight of kv"},
		{"too many parts", Change{Kind: Router, Verb: VerbPromote, Stage: Stage{many}}, ErrInvalid, "up to 8"},
		{"twice", Change{Kind: Router, Verb: VerbPromote, Stage: Stage{[]Part{one, one}}}, ErrInvalid, "named twice"},
		{"param infinite", Change{Kind: Router, Verb: VerbPromote, Stage: NativeStage("x", Param{"p", math.Inf(1)})}, ErrInvalid, "is no number"},
		{"param twice", Change{Kind: Router, Verb: VerbPromote, Stage: NativeStage("x", Param{"p", 1}, Param{"p", 2})}, ErrInvalid, "given twice"},
		{"param without a name", Change{Kind: Router, Verb: VerbPromote, Stage: NativeStage("x", Param{"", 1})}, ErrInvalid, "parameter's name"},
		{"too many params", Change{Kind: Router, Verb: VerbPromote, Stage: NativeStage("x", params...)}, ErrInvalid, "up to 64"},
		{"no name", Change{Kind: Router, Verb: VerbPromote, Stage: NativeStage("")}, ErrInvalid, "name is empty"},
		{"not pushed", Change{Kind: Router, Verb: VerbPromote, Stage: part("kv", "2")}, ErrUnknown, "push it first"},
		{"another's digest", Change{Kind: Router, Verb: VerbPromote, Stage: Stage{[]Part{NewPart("x", digest("kv@1"), 1)}}}, ErrUnknown, "no version of x"},
		{"another kind", Change{Kind: Router, Verb: VerbPromote, Stage: part("gate", "1")}, ErrInvalid, "is of kind admission and cannot be bound as router"},
		{"quarantined", Change{Kind: Router, Verb: VerbPromote, Stage: part("bad", "1")}, ErrQuarantined, "5 traps in 30 s; push a corrected version"},
		{"nothing to promote", Change{Kind: Router, Verb: VerbPromote}, ErrNothing, "name the policy"},
		{"no canary", Change{Kind: Router, Verb: VerbCanary, Share: 0.1}, ErrNothing, "name the policy"},
		{"nothing before", Change{Kind: Router, Verb: VerbRollback}, ErrNothing, "promote what should be"},
		{"pin of nothing", Change{Kind: Router, Verb: VerbPin}, ErrUnknown, "nothing is bound for the router of all models"},
		{"clear of nothing", Change{Kind: Router, Model: "m", Verb: VerbClear}, ErrUnknown, "the router of model m"},
		{"another index", Change{Kind: Router, Verb: VerbPromote, Stage: part("kv", "1"), IfIndex: new(uint64(7))}, ErrConflict, "is at index 0, not 7"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next, err := tab.Change(tt.c, 10)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) || next != tab {
				t.Errorf("%v; want %v and %q", err, tt.want, tt.says)
			}
		})
	}
}

func TestVersionsThatAreRefused(t *testing.T) {
	ok := must(t)
	tab := ok((&Table{}).Put(version("kv", "1", Router), 1))
	for _, tt := range []struct {
		name string
		edit func(*Version)
		want error
		says string
	}{
		{"name", func(v *Version) { v.Policy = "KV" }, ErrInvalid, "begins with a letter"},
		{"no release", func(v *Version) { v.Release = "" }, ErrInvalid, `version of kv is ""`},
		{"release of a path", func(v *Version) { v.Release = "1/2?#" }, ErrInvalid, "letters, digits, ., _, + and -"},
		{"release too long", func(v *Version) { v.Release = strings.Repeat("1", MaxRelease+1) }, ErrInvalid, "from 1 to 64"},
		{"kind", func(v *Version) { v.Kind = "x" }, ErrInvalid, "is of kind"},
		{"no digest", func(v *Version) { v.Digest = Digest{} }, ErrInvalid, "no digest"},
		{"size", func(v *Version) { v.Size = MaxModule + 1 }, ErrInvalid, "up to 4194304"},
		{"report", func(v *Version) { v.Report = strings.Repeat("x", MaxReport+1) }, ErrInvalid, "out of bounds"},
		{"same release", func(v *Version) { v.Release = "1" }, ErrExists, "raise the version"},
		{"another kind", func(v *Version) { v.Kind = Admission }, ErrExists, "another name"},
		{"bytes of another", func(v *Version) { v.Digest, v.Policy = digest("kv@1"), "other" }, ErrExists, "these bytes are kv@1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := version("kv", "2", Router)
			tt.edit(&v)
			if next, err := tab.Put(v, 2); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) || next != tab {
				t.Errorf("%v; want %v and %q", err, tt.want, tt.says)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	ok := must(t)
	tab, index := &Table{}, uint64(0)
	for p := range MaxPolicies {
		index++
		tab = ok(tab.Put(version(fmt.Sprint("p", p), "1", Router), index))
	}
	if _, err := tab.Put(version("more", "1", Router), index+1); !errors.Is(err, ErrFull) {
		t.Errorf("a policy more: %v", err)
	}
	for r := range MaxVersions - 1 {
		index++
		tab = ok(tab.Put(version("p0", strconv.Itoa(r+2), Router), index))
	}
	if _, err := tab.Put(version("p0", "more", Router), index+1); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "delete old ones") {
		t.Errorf("a version more: %v", err)
	}
	for i := range 15 {
		v := version("p1", strconv.Itoa(i+2), Router)
		v.Size = MaxModule
		index++
		tab = ok(tab.Put(v, index))
	}
	v := version("p1", "more", Router)
	v.Size = MaxModule
	if _, err := tab.Put(v, index+1); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("bytes: %v", err)
	}
	for i := range MaxBindings {
		index++
		tab = ok(tab.Change(Change{Kind: Router, Model: fmt.Sprint("m", i), Verb: VerbPromote, Stage: NativeStage("kv-cost")}, index))
	}
	if _, err := tab.Change(Change{Kind: Router, Verb: VerbPromote, Stage: NativeStage("kv-cost")}, index+1); !errors.Is(err, ErrFull) {
		t.Errorf("a binding more: %v", err)
	}
	for i := range 2 * MaxPrevious {
		index++
		tab = ok(tab.Change(Change{Kind: Router, Model: "m0", Verb: VerbPromote, Stage: NativeStage(fmt.Sprint("n", i))}, index))
	}
	if b, _ := tab.Binding(Router, "m0"); len(b.Previous) != MaxPrevious || b.Previous[0].Parts[0].Policy != fmt.Sprint("n", 2*MaxPrevious-2) {
		t.Errorf("%d stages to go back to", len(b.Previous))
	}
	for at := 0; at < MaxStateKeys; at += MaxWrites {
		tab = ok(tab.WriteState("p0", someWrites(at, MaxWrites, 10), index))
	}
	if _, err := tab.WriteState("p0", someWrites(MaxStateKeys, 1, 1), index); !errors.Is(err, ErrFull) {
		t.Errorf("a key more: %v", err)
	}
	var err error
	for p := 1; p < MaxPolicies && err == nil; p++ {
		for at := 0; at < MaxStateKeys && err == nil; at += MaxWrites {
			tab, err = tab.WriteState(fmt.Sprint("p", p), someWrites(at, MaxWrites, MaxStateValue), index)
		}
	}
	if !errors.Is(err, ErrFull) || tab.held > MaxStates || tab.held < MaxStates-MaxWrites*(MaxStateValue+MaxStateKey) {
		t.Errorf("%d bytes of state: %v", tab.held, err)
	}
}

func someWrites(at, n, size int) []Write {
	writes := make([]Write, n)
	for i := range writes {
		writes[i] = Write{Op: WriteSet, Key: fmt.Sprintf("%04d", at+i), Value: make([]byte, size)}
	}
	return writes
}

func TestWritesThatAreRefused(t *testing.T) {
	tab := must(t)((&Table{}).Put(version("p", "1", Router), 1))
	good := Write{Op: WriteSet, Key: "k"}
	for name, writes := range map[string][]Write{
		"none":       nil,
		"too many":   slices.Repeat([]Write{good}, MaxWrites+1),
		"operation":  {good, {Op: 9, Key: "k"}},
		"no key":     {good, {Op: WriteSet}},
		"long key":   {good, {Op: WriteSet, Key: strings.Repeat("k", MaxStateKey+1)}},
		"long value": {good, {Op: WriteSet, Key: "k", Value: make([]byte, MaxStateValue+1)}},
	} {
		if next, err := tab.WriteState("p", writes, 2); !errors.Is(err, ErrInvalid) || next != tab {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := tab.WriteState("x", []Write{good}, 2); !errors.Is(err, ErrUnknown) {
		t.Errorf("no such policy: %v", err)
	}
}

// A snapshot that no history can have made is refused.
func TestLoaderRefuses(t *testing.T) {
	good := version("kv", "1", Router)
	good.Index = 1
	broken := good
	broken.Quarantined, broken.Reason = 2, "traps"
	early := good
	early.Index = 0
	binding := Binding{Kind: Router, Active: part("kv", "1"), Index: 3}
	for name, load := range map[string]func(*Loader) error{
		"a version twice":          func(l *Loader) error { return errors.Join(l.Version(good), l.Version(good)) },
		"a version never put":      func(l *Loader) error { return l.Version(early) },
		"binding of nothing":       func(l *Loader) error { return l.Binding(binding) },
		"binding of a quarantined": func(l *Loader) error { return errors.Join(l.Version(broken), l.Binding(binding)) },
		"a binding never made": func(l *Loader) error {
			b := binding
			b.Index = 0
			return errors.Join(l.Version(good), l.Binding(b))
		},
		"a share of no canary": func(l *Loader) error {
			b := binding
			b.CanaryShare = 0.5
			return errors.Join(l.Version(good), l.Binding(b))
		},
		"previous of nothing": func(l *Loader) error {
			b := binding
			b.Previous = []Stage{part("kv", "2")}
			return errors.Join(l.Version(good), l.Binding(b))
		},
		"bindings before versions": func(l *Loader) error {
			b := Binding{Kind: Router, Active: NativeStage("x"), Index: 1}
			return errors.Join(l.Binding(b), l.Version(good))
		},
		"state of nobody": func(l *Loader) error { return l.State("kv", 1) },
		"row of no state": func(l *Loader) error { return l.StateRow("k", nil) },
		"rows out of order": func(l *Loader) error {
			return errors.Join(l.Version(good), l.State("kv", 1), l.StateRow("k", nil), l.StateRow("a", nil))
		},
		"two states":         func(l *Loader) error { return errors.Join(l.Version(good), l.State("kv", 1), l.State("kv", 2)) },
		"older than its own": func(l *Loader) error { return errors.Join(l.Version(broken), tableErr(l, 1)) },
		"two of one release": func(l *Loader) error {
			twin := good
			twin.Digest = digest("twin")
			first, second := good, twin
			if string(twin.Digest[:]) < string(good.Digest[:]) {
				first, second = twin, good
			}
			return errors.Join(l.Version(first), l.Version(second), tableErr(l, 1))
		},
	} {
		if err := load(&Loader{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func tableErr(l *Loader, index uint64) error {
	_, err := l.Table(index)
	return err
}

func TestFind(t *testing.T) {
	ok := must(t)
	tab := ok((&Table{}).Put(version("kv", "1", Router), 1))
	tab = ok(tab.Put(version("kv", "2", Router), 2))
	two := digest("kv@2").String()
	for ref, release := range map[string]string{"kv": "2", "kv@1": "1", "kv@2": "2", two: "2", two[:12]: "2", "kv@" + two[:8]: "2"} {
		if v, err := tab.Find(ref); err != nil || v.Release != release {
			t.Errorf("%s: %s, %v", ref, v.Ref(), err)
		}
	}
	for _, ref := range []string{"", "k", "kv@3", "kv@", two[:5], "nobody"} {
		if v, err := tab.Find(ref); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %s, %v", ref, v.Ref(), err)
		}
	}
}

func TestDigestAndVerbText(t *testing.T) {
	d := digest("x")
	var back Digest
	if text, _ := d.MarshalText(); back.UnmarshalText(text) != nil || back != d || !strings.HasPrefix(d.String(), d.Short()) {
		t.Error(back)
	}
	for _, bad := range []string{"", "xyz", d.String()[1:], d.String() + "00"} {
		if err := back.UnmarshalText([]byte(bad)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for v := VerbShadow; v <= VerbClear; v++ {
		if got, err := ParseVerb(v.String()); err != nil || got != v {
			t.Errorf("%v: %v, %v", v, got, err)
		}
	}
	if _, err := ParseVerb(""); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	s := Stage{[]Part{NewPart("kv", d, 2), NewPart("native", Digest{}, 0.5)}}
	if got, want := s.String(), "2×kv@"+d.Short()+" + 0.5×native"; got != want || (Stage{}).String() != "none" {
		t.Errorf("%s, want %s", got, want)
	}
}

func BenchmarkResolve(b *testing.B) {
	tab := &Table{}
	for i := range MaxBindings {
		tab, _ = tab.Change(Change{Kind: Router, Model: fmt.Sprint("m", i), Verb: VerbPromote, Stage: NativeStage("kv-cost")}, uint64(i+1))
	}
	b.ReportAllocs()
	for b.Loop() {
		tab.Resolve(Router, "m77")
	}
}
