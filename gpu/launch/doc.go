// Package launch runs engine workers as child processes of this one.
//
// A [Child] is started again, after a growing pause, whenever it ends by
// itself; it is stopped by asking (SIGTERM, which makes a worker drain) and
// then, when its time is over, by force. It does not outlive its parent: on
// Linux the kernel kills it, elsewhere it sees the end of its standard input
// ([ParentGone]). It has a process group of its own, so that a Ctrl-C in the
// terminal reaches the parent only, which then decides.
//
// launch knows nothing of models or planners: what a command line means is the
// caller's business, whether a worker is needed is core/scale's.
package launch
