// Package wal is the storage of a Raft group: its log, its votes and terms.
//
// [Open] opens the write-ahead log on disk, [Memory] one that forgets. [Guard]
// stands between either and the Raft library and keeps a disk that hangs or
// fails from hanging the group: writes have a deadline, and the first failure
// ends the store's use. [ProbeSync] measures how fast the disk syncs.
//
// Snapshots are files beside the log, written by the Raft library's own store.
package wal
