package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Digest names a module: the SHA-256 of its bytes as they were uploaded. The
// zero digest names none: a policy that is built in.
type Digest [sha256.Size]byte

// DigestOf is the digest of a module.
func DigestOf(module []byte) Digest { return sha256.Sum256(module) }

// ParseDigest reads the 64 hexadecimal digits that String gives. Errors wrap
// ErrInvalid.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(d) {
		return d, fmt.Errorf("%w: digest %.80q is not %d hexadecimal digits", ErrInvalid, s, 2*len(d))
	}
	return Digest(b), nil
}

// IsZero reports whether d names no module.
func (d Digest) IsZero() bool { return d == Digest{} }

// String is the digest in hex.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Short is the digest's first 12 digits, for people.
func (d Digest) Short() string { return hex.EncodeToString(d[:6]) }

// MarshalText is String, for JSON.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDigest.
func (d *Digest) UnmarshalText(text []byte) error {
	parsed, err := ParseDigest(string(text))
	if err == nil {
		*d = parsed
	}
	return err
}
