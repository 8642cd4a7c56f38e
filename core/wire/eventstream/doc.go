// Package eventstream cuts a server-sent event stream into events without
// changing a byte of it.
//
// Reads of a connection are not events: one read may end in the middle of a
// line, of a CRLF or of a character, or hold many events. A [Reader] keeps the
// unfinished rest and hands out each whole [Event] once, with the exact bytes
// it came in, so that a relay can forward them and look inside in one pass. In
// steady state it allocates nothing.
//
// It understands the stream format of the HTML standard: lines end in LF, CRLF
// or CR, a blank line ends an event, lines that begin with a colon are
// comments, several data lines join with LF, and a byte order mark may come
// first. It does not know what the data means (core/wire/edge does) and writes
// nothing (server/sse does).
package eventstream
