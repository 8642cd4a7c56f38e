// Package tcp carries KV transfers over TCP in pure Go.
//
// A decode worker dials: one session to each prefill worker it imports from, of
// one to four connections, kept for the next transfer. Control messages travel
// on the first; frames on whichever is free. Pages are written from where they
// lie (one writev for a whole frame) and read to where they belong, without a
// copy between, in pieces that do not block, so that an import can be fenced at
// any moment without breaking the connection.
//
// What the messages mean is package transfer's business; this one moves them,
// and declares a session lost on the first thing that does not fit: a bad
// checksum of a header, a peer that is not who was meant, a write that does not
// advance. A session that is lost takes its transfers with it, and the next
// import dials anew.
package tcp
