// Package snapshot keeps a Raft group's snapshots in a directory and notices
// when one is no longer what was written.
//
// [Open] wraps the Raft library's file store and keeps its layout, so that
// directories of earlier releases stay readable. That store checks a snapshot's
// contents when it is opened; what the contents are, up to which entry, and of
// which members, it believes blindly. Here each snapshot is sealed: a checksum of
// its description lies beside it. A damaged snapshot is moved into the folder
// quarantine and the one before it takes its place; whether the log reaches back
// that far is package group's concern. [OpenReadOnly] looks and changes nothing.
//
// What is in a snapshot is the state machine's affair; its sections carry
// checksums of their own.
package snapshot
