package native

import "testing"

type policy string

func (p policy) Name() string { return string(p) }

func TestNamed(t *testing.T) {
	all := []policy{"a", "b", "c"}
	for _, p := range all {
		if got, err := Named("test", p.Name(), all); err != nil || got != p {
			t.Errorf("%q is %q, %v", p, got, err)
		}
	}
	const want = `unknown test policy "d": use a, b or c`
	if got, err := Named("test", "d", all); err == nil || got != "" || err.Error() != want {
		t.Errorf("%q, %v; want %s", got, err, want)
	}
}
