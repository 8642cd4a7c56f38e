package quota

import (
	"unicode"
	"unicode/utf8"
)

// SoundTenant reports whether a tenant may be called so: in UTF-8 and without control
// characters, which would change what a terminal or a log shows. How long a name may be
// is for those who keep it. A ledger itself takes any, so that one from before can be
// dropped.
func SoundTenant(name string) bool {
	if !utf8.ValidString(name) {
		return false
	}
	for _, r := range name {
		if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			return false
		}
	}
	return true
}
