package prefix

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Scope is where equal tokens mean equal KV: one model, on workers whose KV is
// interchangeable, with one adapter, under one salt. Whoever translates a
// worker's events and whoever hashes a prompt must name the same scope.
type Scope struct {
	// Base is the served name of the worker's base model, the first of its Models.
	Base string
	// Compat is the worker's compatibility group; empty when it has none.
	Compat string
	// Adapter is the adapter that the tokens were computed with; empty for the
	// base model.
	Adapter string
	// Salt is what keeps the caches of tenants apart: the cache_salt that the
	// engine gets. Empty is no salt.
	Salt string
}

// Seed is the hash that the scope's chains start from: [Domain] of "base:compat"
// and the salt, which an adapter's name and a zero byte go before.
func (s Scope) Seed() Hash {
	var d xxhash.Digest
	d.Reset()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(s.Base)+1+len(s.Compat)))
	_, _ = d.Write(n[:]) // never fails
	_, _ = d.WriteString(s.Base)
	_, _ = d.WriteString(":")
	_, _ = d.WriteString(s.Compat)
	if s.Adapter != "" {
		_, _ = d.WriteString(s.Adapter)
		_, _ = d.WriteString("\x00")
	}
	_, _ = d.WriteString(s.Salt)
	return Hash(d.Sum64())
}
