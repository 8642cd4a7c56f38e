package native

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// policy has parameters unless its name is plain.
type policy struct {
	name  string
	scale float64
	wait  time.Duration
	depth int
}

func (p policy) Name() string { return p.name }

func (p policy) Tune(s *Params) policy {
	s.Number(&p.scale, Param{Name: "scale", Default: 8, Least: 1, Most: 10})
	s.Seconds(&p.wait, Param{Name: "wait_seconds", Default: 2, Least: .001, Most: 60})
	s.Count(&p.depth, Param{Name: "depth", Default: 16, Least: 1, Most: 64})
	return p
}

type plain string

func (p plain) Name() string { return string(p) }

func TestNamed(t *testing.T) {
	all := []plain{"a", "b", "c"}
	for _, p := range all {
		if got, err := Named("test", p.Name(), nil, all); err != nil || got != p {
			t.Errorf("%q is %q, %v", p, got, err)
		}
	}
	for name, want := range map[string]string{"d": `unknown test policy "d": use a, b or c`, "a": "a takes no parameters"} {
		if _, err := Named("test", name, map[string]float64{"x": 1}, all); err == nil || err.Error() != want {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

func TestParams(t *testing.T) {
	all := []policy{{name: "p"}, {name: "q"}}
	for _, c := range []struct {
		given map[string]float64
		want  policy
		err   string
	}{
		{nil, policy{name: "p"}, ""},
		{map[string]float64{"scale": 3}, policy{"p", 3, 2 * time.Second, 16}, ""},
		{map[string]float64{"wait_seconds": .0015, "depth": 64}, policy{"p", 8, 1500 * time.Microsecond, 64}, ""},
		{map[string]float64{"depht": 3}, policy{}, `p has no parameter "depht"; it has scale, wait_seconds, depth`},
		{map[string]float64{"scale": 0}, policy{}, "scale of p is from 1 to 10, not 0"},
		{map[string]float64{"scale": 10.5}, policy{}, "scale of p is from 1 to 10, not 10.5"},
		{map[string]float64{"scale": math.NaN()}, policy{}, "scale of p is from 1 to 10, not NaN"},
		{map[string]float64{"depth": 1.5}, policy{}, "depth of p is a whole number, not 1.5"},
	} {
		got, err := Named("test", "p", c.given, all)
		switch {
		case c.err != "" && (err == nil || err.Error() != c.err):
			t.Errorf("%v: %v; want %s", c.given, err, c.err)
		case c.err == "" && (err != nil || got != c.want):
			t.Errorf("%v: %+v, %v; want %+v", c.given, got, err, c.want)
		}
	}
	var names []string
	for _, p := range ParamsOf(all[0]) {
		names = append(names, p.Name)
	}
	if diff := cmp.Diff([]string{"scale", "wait_seconds", "depth"}, names); diff != "" || ParamsOf(plain("a")) != nil {
		t.Error(diff, ParamsOf(plain("a")))
	}
}

func TestParseParts(t *testing.T) {
	for text, want := range map[string][]Part{
		"sticky":                        {{Name: "sticky", Weight: 1}},
		" sticky=2 , ./mine.wasm ":      {{Name: "sticky", Weight: 2}, {Name: "./mine.wasm", Weight: 1}},
		"a=2(x=1, y=true),b(z=1e3 v=0)": {{"a", 2, map[string]float64{"x": 1, "y": 1}}, {"b", 1, map[string]float64{"z": 1000, "v": 0}}},
		"native:a(on=false)":            {{"native:a", 1, map[string]float64{"on": 0}}},
		"a()":                           {{Name: "a", Weight: 1}},
	} {
		got, err := ParseParts(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", text, err, diff)
		}
	}
	for text, want := range map[string]string{
		"":                                   "a name is missing",
		"a,,b":                               "a name is missing",
		"=1":                                 "a name is missing",
		"a=0":                                "not a number above 0",
		"a=":                                 "not a number above 0",
		"a=NaN":                              "not a number above 0",
		"a=Inf":                              "not a number above 0",
		"a=1=2":                              "not a number above 0",
		"a(x=1":                              "a bracket is not closed",
		"a(x=1)=2":                           "a bracket is not closed",
		"a(x)":                               "is not a parameter such as",
		"a(=1)":                              "is not a parameter such as",
		"a(x=NaN)":                           "is not a parameter such as",
		"a(x=1e999)":                         "is not a parameter such as",
		"a(x=1 y=2 x=3)":                     "x is given twice",
		strings.Repeat("a,", maxParts) + "a": "more than 16 policies",
	} {
		if got, err := ParseParts(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
}

func FuzzParseParts(f *testing.F) {
	for _, s := range []string{"kv", "kv@1=2", "kv-cost=2,./mine.wasm=0.5(stay=5 go=true)", "a=b(", "=1", ",", "x(=)", "x(y=NaN)", "x.wasm=1e999", "a),b(c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := ParseParts(text)
		if err != nil {
			return
		}
		if len(parts) == 0 {
			t.Errorf("%q has no parts and no error", text)
		}
		for _, p := range parts {
			if p.Name == "" || !(p.Weight > 0) || math.IsInf(p.Weight, 0) {
				t.Errorf("%q gave %+v", text, p)
			}
			for name, v := range p.Params {
				if name == "" || math.IsNaN(v) || math.IsInf(v, 0) {
					t.Errorf("%q gave %+v", text, p)
				}
			}
		}
	})
}
