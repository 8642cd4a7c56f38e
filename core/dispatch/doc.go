// Package dispatch carries a request from its acceptance to its outcome: admit
// → route → legs → settle.
//
// A [Life] is one request. [Dispatcher.Accept] counts it and admits it,
// [Life.Serve] places it, reserves before the first byte leaves, sends one leg
// (aggregated) or two at once (disaggregated, paired by a random transfer id),
// relays whole events to a [Sink], and settles. Every path ends in one
// [Outcome], which metrics, log and client all see; every reservation is closed
// once.
//
// What failed decides what follows. A worker that does not accept the
// connection, or is another incarnation than meant, is left out for a moment
// and the request goes to a runner-up; a refusal (busy, draining) goes to a
// runner-up and is nobody's fault; what an engine may have begun is begun
// again only where engines merely compute and the client has nothing yet, and a
// stream whose worker is lost goes on elsewhere from the tokens that the client
// has, where engines can. A stream is whole only when its end was
// seen: what breaks off for good ends as an error, never as silence.
//
// dispatch knows no sockets: core/engine's adapters send, the front doors under
// server/ own the client's connection. Which worker is core/route's business.
package dispatch
