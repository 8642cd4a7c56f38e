package identity

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
)

// ErrToken means that a cluster token, or a file of them, is malformed. The
// text says where, and never what stands there.
var ErrToken = errors.New("malformed cluster token")

const (
	tokenPrefix = "ym1-"
	secretBytes = 32
	// sumBytes of checksum turn a mistyped token into an error of its own; else
	// it would be the valid token of another cluster. With them the text has no
	// padding bits either: a token has one spelling, but for case.
	sumBytes = 3

	// maxTokens bounds what each handshake tries.
	maxTokens = 16
	// maxFile bounds every file read here.
	maxFile = 1 << 20
)

var tokenText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// secret is what a token stands for.
type secret [secretBytes]byte

// NewToken is a fresh cluster token: "ym1-" and 56 letters and digits. It is
// the secret of a whole cluster.
func NewToken() string {
	var s secret
	_, _ = rand.Read(s[:]) // never fails
	return formatToken(s)
}

func formatToken(s secret) string {
	return tokenPrefix + tokenText.EncodeToString(append(s[:], checksum(s)...))
}

func checksum(s secret) []byte {
	sum := sha256.Sum256(append([]byte(tokenPrefix), s[:]...))
	return sum[:sumBytes]
}

// CheckToken tells whether a token is well formed. Errors wrap ErrToken.
func CheckToken(token string) error {
	_, err := parseToken(token)
	return err
}

func parseToken(token string) (secret, error) {
	var s secret
	body, ok := strings.CutPrefix(strings.ToLower(token), tokenPrefix)
	if !ok {
		return s, fmt.Errorf("%w: it does not begin with %q", ErrToken, tokenPrefix)
	}
	if want := tokenText.EncodedLen(secretBytes + sumBytes); len(body) != want {
		return s, fmt.Errorf("%w: %d characters after %q, want %d", ErrToken, len(body), tokenPrefix, want)
	}
	raw, err := tokenText.DecodeString(body)
	if err != nil {
		return s, fmt.Errorf("%w: a character that is no base32", ErrToken)
	}
	copy(s[:], raw)
	if !bytes.Equal(raw[secretBytes:], checksum(s)) {
		return s, fmt.Errorf("%w: its checksum is wrong, so a character is", ErrToken)
	}
	return s, nil
}

// parseTokens reads a token file: a token a line, blank lines and lines that
// begin with # aside.
func parseTokens(text []byte) ([]secret, error) {
	var out []secret
	number := 0
	for line := range bytes.Lines(text) {
		number++
		token := strings.TrimSpace(string(line))
		if token == "" || token[0] == '#' {
			continue
		}
		s, err := parseToken(token)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if len(out) == maxTokens {
			return nil, fmt.Errorf("%w: more than %d tokens", ErrToken, maxTokens)
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: the file holds no token", ErrToken)
	}
	return out, nil
}
