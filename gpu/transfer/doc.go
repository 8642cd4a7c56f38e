// Package transfer moves the KV pages of one request from the worker that
// computed them to the worker that will decode from them, and never calls a
// transfer good that it has not verified.
//
// A [Node] is one worker's end: it exports pages it computes and imports pages
// into memory it has reserved. It owns the state machine of both sides
// ([State]), the leases, the fence and the meeting of the two legs. It moves no
// byte itself: a transport (package tcp; package fake for tests) gives it
// [Link]s, one per peer incarnation, and hands it what arrives.
//
// What it promises:
//
//   - a destination page is written only between its reservation and the end of
//     its import, whatever the peer sends ([Landing] is the only door);
//   - a source page is read only until the exporter's release is called;
//   - an import succeeds only if every page arrived exactly once, with the
//     reserved generation, from the incarnation meant, for the same prompt, and
//     with matching checksums;
//   - every transfer ends, on both sides, within its lease of the peer's silence.
//
// It refuses to choose peers (core/route does), to retry (the engine recomputes)
// and to keep pages (the engine's cache does). Why it is built so: DESIGN.md.
package transfer
