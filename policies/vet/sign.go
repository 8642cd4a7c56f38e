package vet

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// ErrSignature says that a signature is missing or was not made by a trusted key.
var ErrSignature = errors.New("signature not accepted")

// ErrKey says that a key cannot be read.
var ErrKey = errors.New("not an Ed25519 key")

// Key is a key that may sign policies, with the name by which reports call it.
type Key struct {
	Name   string
	Public ed25519.PublicKey
}

// Sign makes the detached signature of an upload: Ed25519 over the SHA-256 of its
// bytes.
func Sign(private ed25519.PrivateKey, wasm []byte) []byte {
	digest := sha256.Sum256(wasm)
	return ed25519.Sign(private, digest[:])
}

// Verify finds the key that signed an upload. Errors wrap [ErrSignature].
func Verify(keys []Key, wasm, signature []byte) (Key, error) {
	return verify(keys, sha256.Sum256(wasm), signature)
}

func verify(keys []Key, digest [sha256.Size]byte, signature []byte) (Key, error) {
	if len(signature) != ed25519.SignatureSize {
		return Key{}, fmt.Errorf("%w: it has %d bytes; an Ed25519 signature has %d", ErrSignature, len(signature), ed25519.SignatureSize)
	}
	for _, k := range keys {
		if len(k.Public) == ed25519.PublicKeySize && ed25519.Verify(k.Public, digest[:], signature) {
			return k, nil
		}
	}
	return Key{}, fmt.Errorf("%w: none of the %d trusted keys made it for these bytes", ErrSignature, len(keys))
}

// Trust is whose uploads are accepted. The zero value accepts none.
type Trust struct {
	// Keys are those whose signatures count.
	Keys []Key
	// Unsigned accepts uploads without a signature. One that has a signature must still
	// have a good one, unless no key is trusted at all.
	Unsigned bool
}

// Judge says, for people, why an upload with that digest and detached signature, which
// may be empty, is accepted, and by which key it was signed; empty is none that counts.
// Errors wrap [ErrSignature].
func (t Trust) Judge(digest [sha256.Size]byte, signature []byte) (signer, text string, err error) {
	switch {
	case len(signature) == 0 && t.Unsigned:
		return "", "unsigned, which is allowed here", nil
	case len(signature) == 0:
		return "", "", fmt.Errorf("%w: there is none; sign the upload (policy push --key), or allow unsigned policies in the configuration", ErrSignature)
	case len(t.Keys) == 0 && t.Unsigned:
		return "", "signed, and no key is trusted here; unsigned policies are allowed", nil
	case len(t.Keys) == 0:
		return "", "", fmt.Errorf("%w: no key is trusted here; configure policy.trusted-key", ErrSignature)
	}
	key, err := verify(t.Keys, digest, signature)
	if err != nil {
		return "", "", err
	}
	return key.Name, "signed by " + key.Name, nil
}

// The types of PEM blocks that hold keys.
const (
	pemPublic  = "PUBLIC KEY"
	pemPrivate = "PRIVATE KEY"
)

// ParsePublicKey reads a public key in PEM (PKIX), as openssl and `yardmaster policy
// keygen` write it. Errors wrap [ErrKey].
func ParsePublicKey(text []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemPublic {
		return nil, fmt.Errorf("%w: there is no PEM block %q", ErrKey, pemPublic)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	public, ok := key.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%w: it is a %T", ErrKey, key)
	}
	return public, nil
}

// ParsePrivateKey reads a private key in PEM (PKCS #8). Errors wrap [ErrKey].
func ParsePrivateKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemPrivate {
		return nil, fmt.Errorf("%w: there is no PEM block %q", ErrKey, pemPrivate)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%w: it is a %T", ErrKey, key)
	}
	return private, nil
}

// FormatKeys writes a pair as PEM blocks, which [ParsePublicKey] and
// [ParsePrivateKey] read.
func FormatKeys(private ed25519.PrivateKey) (public, secret []byte, err error) {
	p, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("vet: %w", err)
	}
	s, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("vet: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: p}), pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: s}), nil
}
