// Package kvevent reads and writes the KV-cache events that engines publish:
// which blocks of tokens an engine stored, removed or cleared.
//
// One decoder serves every engine and era: events as positional arrays or as
// maps, block hashes as integers or bytes, replies to a replay request with two
// or three frames. What it does not know it skips; what it cannot read it
// refuses with [ErrMalformed] and the offset, never with a panic nor with an
// allocation larger than the message justifies.
//
// It knows bytes only. Sockets are gpu/zmtp's, what the events mean for routing
// is core/prefix's business.
package kvevent
