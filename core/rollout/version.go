package rollout

import (
	"fmt"
	"slices"
)

// Bounds of a table. They belong to the entries of feature level 3 and cannot
// change within it: replicas would disagree about what was taken.
const (
	MaxPolicies = 64        // names of policies
	MaxVersions = 32        // of one policy
	MaxModule   = 4 << 20   // bytes of one version
	MaxModules  = 64 << 20  // bytes of all versions together
	MaxReport   = 16 << 10  // bytes of a version's report
	MaxName     = 63        // bytes of a policy's name
	MaxRelease  = 64        // bytes of an author's version
	MaxReason   = 512       // bytes of a reason for quarantine
	maxSigner   = 256       // bytes
	maxTime     = 1<<53 - 1 // milliseconds
)

// Kind is what a policy decides. Its values are those of the ABI.
type Kind string

// The kinds of policies.
const (
	Router     Kind = "router"     // which worker serves a request
	Admission  Kind = "admission"  // whether a request is served, and how urgently
	Autoscaler Kind = "autoscaler" // how many replicas each pool should have
	Observer   Kind = "observer"   // learns from outcomes, for the others
)

// Kinds are all kinds.
func Kinds() []Kind { return []Kind{Router, Admission, Autoscaler, Observer} }

// Known reports whether k is a kind.
func (k Kind) Known() bool { return slices.Contains(Kinds(), k) }

// Version is an uploaded module. It is immutable; what the manifest says more
// is in the module.
type Version struct {
	Policy  string // name
	Release string // the author's version
	Kind    Kind
	Digest  Digest
	Size    int64  // bytes of the module
	Signer  string // who signed it, as the trusted key is called; empty: nobody
	Report  string // JSON of the checks at the upload; do not decide by it
	Created int64  // Unix milliseconds by the proposer's clock
	// FailClosed says of an admission policy that what it cannot decide is refused,
	// as its manifest asks for: then a quarantine leaves it bound.
	FailClosed bool

	Index       uint64 // Raft index of the upload; set by the table
	Quarantined uint64 // Raft index of its quarantine; 0: in order
	Reason      string // for the quarantine
}

// Ref is name@release, for people.
func (v *Version) Ref() string { return v.Policy + "@" + v.Release }

// Validate reports the first thing that keeps a version from being put, other
// than what is in the table already. Errors wrap ErrInvalid.
func (v *Version) Validate() error {
	switch {
	case !isName(v.Policy):
		return fmt.Errorf("%w: a policy's name has from 1 to %d of a-z, 0-9, - and _, and begins with a letter; %.80q does not", ErrInvalid, MaxName, v.Policy)
	case !isRelease(v.Release):
		return fmt.Errorf("%w: the version of %s is %.80q; it has from 1 to %d of letters, digits, ., _, + and -", ErrInvalid, v.Policy, v.Release, MaxRelease)
	case !v.Kind.Known():
		return fmt.Errorf("%w: %s is of kind %.80q; it is one of %v", ErrInvalid, v.Ref(), v.Kind, Kinds())
	case v.Digest.IsZero():
		return fmt.Errorf("%w: %s has no digest", ErrInvalid, v.Ref())
	case v.Size < 1 || v.Size > MaxModule:
		return fmt.Errorf("%w: the module of %s has %d bytes; it may have up to %d", ErrInvalid, v.Ref(), v.Size, MaxModule)
	case v.FailClosed && v.Kind != Admission:
		return fmt.Errorf("%w: %s is of kind %s, which cannot fail closed", ErrInvalid, v.Ref(), v.Kind)
	case len(v.Report) > MaxReport || len(v.Signer) > maxSigner || v.Created < 0 || v.Created > maxTime:
		return fmt.Errorf("%w: the report, signer or time of %s is out of bounds", ErrInvalid, v.Ref())
	}
	return nil
}

func isName(s string) bool {
	if s == "" || len(s) > MaxName || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// isRelease reports whether s can be typed, and be part of a path, as it is.
func isRelease(s string) bool {
	if s == "" || len(s) > MaxRelease {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == '+', c == '-':
		default:
			return false
		}
	}
	return true
}
