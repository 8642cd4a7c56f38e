// Package transport stands between the Raft library and its network.
//
// [Guard] wraps any transport of the library. It lets a heartbeat bypass the
// library's main loop only where that is safe, and it can be closed to take a
// node with a sick disk out of elections. How bytes travel is the inner
// transport's affair.
package transport
