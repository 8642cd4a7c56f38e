// Package h1 is an HTTP/1.1 client for engines: POST a body from memory, read
// the answer as it comes.
//
// It does what a gateway needs of net/http's client at a fraction of its cost:
// no goroutine per connection, no header map, one write per request, reads on
// the caller's goroutine. It keeps idle connections of one address in a bounded
// stack, gives them up before servers usually close theirs, and looks whether
// the peer has closed one before it is used again.
//
// It refuses what engines do not do: redirects, proxies, compression, HTTP/2,
// TLS, responses without a body length that also keep the connection. The parser
// is strict; every header and chunk is bounded.
//
// A call is sent a second time only if the first went over a used connection
// that ended at once and without a byte of response: the server had closed it.
// What ends later may have been computed, or be what the engine died of. Choosing
// another worker is core/dispatch's business.
package h1
