package identity

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func TestTokenRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token := NewToken()
		if len(token) != 60 || seen[token] {
			t.Fatalf("token of %d characters, seen before: %v", len(token), seen[token])
		}
		seen[token] = true
		s, err := parseToken(token)
		if err != nil || formatToken(s) != token {
			t.Fatalf("round trip: %v", err)
		}
		if upper, err := parseToken(strings.ToUpper(token)); err != nil || upper != s {
			t.Fatalf("upper case: %v", err)
		}
	}
}

// Whoever copies a token by hand gets a character wrong.
func TestEveryMistypedCharacterIsNoticed(t *testing.T) {
	token := NewToken()
	for i := len(tokenPrefix); i < len(token); i++ {
		for _, c := range []byte("a7") {
			typo := []byte(token)
			if typo[i] == c {
				continue
			}
			typo[i] = c
			if err := CheckToken(string(typo)); !errors.Is(err, ErrToken) {
				t.Errorf("character %d: %v", i, err)
			}
		}
	}
}

func TestTokenFiles(t *testing.T) {
	a, b := NewToken(), NewToken()
	typo := "ym1-" + strings.Repeat("a", 56)
	tests := []struct {
		name, text string
		tokens     int // 0: refused
		says       string
	}{
		{"one", a, 1, ""},
		{"two, with comments and Windows line ends", "# the new one\r\n" + a + "\r\n\r\n  " + b + "\r\n", 2, ""},
		{"empty", "", 0, "no token"},
		{"comments only", "# nothing\n", 0, "no token"},
		{"not a token", a + "\nhunter2\n", 0, "line 2"},
		{"another version", "ym2-" + a[4:], 0, "does not begin"},
		{"cut short", a[:40], 0, "36 characters"},
		{"mistyped", typo, 0, "checksum"},
		{"not base32", "ym1-" + strings.Repeat("0", 56), 0, "base32"},
		{"too many", strings.Repeat(a+"\n", maxTokens+1), 0, "more than 16"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseTokens([]byte(tt.text))
			if tt.tokens > 0 {
				if err != nil || len(got) != tt.tokens {
					t.Errorf("%d tokens, %v", len(got), err)
				}
				return
			}
			if !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want one that says %q", err, tt.says)
			}
			if err != nil && (strings.Contains(err.Error(), a[4:20]) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("the error gives the secret away: %v", err)
			}
		})
	}
}

// Every release has to derive the same authority from a token, or clusters
// fall apart while they are upgraded.
func TestAuthorityOfATokenIsFixed(t *testing.T) {
	var s secret
	for i := range s {
		s[i] = byte(i)
	}
	const token = "ym1-aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypzssj3"
	if got := formatToken(s); got != token {
		t.Errorf("token %s", got)
	}
	a, err := newAuthority(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := newAuthority(s)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.cert.Raw, again.cert.Raw) {
		t.Error("the certificate differs from one time to the next")
	}
	sum := sha256.Sum256(a.cert.Raw)
	if got, want := hex.EncodeToString(sum[:]), goldenAuthority; got != want {
		t.Errorf("authority %s, want %s", got, want)
	}
}

const goldenAuthority = "2a345f69615a6cf1a3f1db706b50c94a78431f26759159d6b81c4ae32d057b21"

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte(NewToken() + "\n# x\n" + NewToken()))
	f.Add([]byte("ym1-"))
	f.Add([]byte("YM1-" + strings.Repeat("A", 56) + "\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parseTokens(text)
		if (err == nil) != (len(got) > 0) || len(got) > maxTokens {
			t.Fatalf("%d tokens and %v", len(got), err)
		}
		if err != nil && !errors.Is(err, ErrToken) {
			t.Fatalf("error %v", err)
		}
		for _, s := range got {
			if !bytes.Contains(bytes.ToLower(text), []byte(formatToken(s))) {
				t.Fatal("a token that is not in the text")
			}
		}
	})
}
