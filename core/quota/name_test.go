package quota

import "testing"

func TestSoundTenant(t *testing.T) {
	for name, want := range map[string]bool{
		"acme": true, "a/b c": true, "müller & 子": true, "": true,
		"a\x1b[31m": false, "a\nb": false, "a\tb": false, "a\x7f": false, "a\u0085": false, "a\u202eb": false, "\xff": false, "a\u2028b": false,
	} {
		if got := SoundTenant(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
