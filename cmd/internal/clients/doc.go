// Command clients runs the official openai clients for Python, Node and Go,
// unmodified, against a gateway in front of scripted engines, and curl beside
// them: `make test-clients`.
//
// It installs the clients, at the versions pinned beside each suite, into a
// cache folder; builds nothing of ours but the Go suite; starts four scripted
// engines and two gateways for each suite, on loopback; and prints which client
// passed which case. A suite is a program in its client's language that reads
// where everything is from an environment variable and prints one JSON line a
// case. What the engines play, and what a client should make of it, stands in
// plays.yaml, once for all suites.
//
// A toolchain that is missing, or a registry that cannot be reached, is skipped
// and said so (with -strict it is a failure). Anything else is a failure.
package main
