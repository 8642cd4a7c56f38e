// Package h1 serves HTTP/1.1 to many clients at a fraction of net/http's cost,
// for the requests a gateway lives on: a POST with a body of stated length,
// answered whole or as a stream.
//
// A connection is one goroutine with one small buffer, which it gives back while
// a handler runs. The handler is an ordinary [http.Handler]; what it writes goes
// out in one system call, unbuffered. Whether the client has left is told by the
// kernel for all connections at once, not by a goroutine for each. The context
// of a request is that of its connection and ends when the client leaves.
//
// Ordinary requests (any other route or method, without a body or with one of
// stated length or in chunks, asked for by Expect or not) are read by net/http's
// parser and served by the handler of the net/http server behind, on the same
// connection, which both kinds keep: a handler cannot tell where it was called,
// but that it can send no trailers and take over no connection.
//
// The parser guesses nothing. Whatever is unusual or malformed (upgrades,
// HTTP/1.0, trailers, very long heads, doubtful headers) and every connection
// that is not plain TCP go, with all bytes read so far, to the server behind, for
// one request; that ends the connection. On other systems than Linux all do, for
// good. What net/http would take though a proxy in front may have read it
// otherwise (folded lines, lines without CR, two statements of the body's length)
// is refused with status 400.
//
// What is served is server's business; deadlines for bodies and writes are the
// handlers'.
package h1
