package prefix

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

// Seed is the hash that the scope's chains start from.
func (s Scope) Seed() Hash {
	salt := s.Salt
	if s.Adapter != "" {
		salt = s.Adapter + "\x00" + s.Salt
	}
	return Domain(s.Base+":"+s.Compat, salt)
}
