package ym

// Level says how much a log line matters.
type Level uint32

// The levels.
const (
	Debug Level = iota
	Info
	Warn
	Error
)

// Scope says whose state is meant.
type Scope uint32

// The scopes.
const (
	Local      Scope = iota // this node's, which may be lost
	Replicated              // the cluster's, which only autoscalers and observers write
)

// Counter is one of the manifest's, by its place.
type Counter uint32

// Add adds to the counter.
func (c Counter) Add(n int64) { counterAdd(uint32(c), n) }

// Histogram is one of the manifest's, by its place.
type Histogram uint32

// Observe counts a value.
func (h Histogram) Observe(v float64) { histObserve(uint32(h), v) }

// Log writes a line of at most 1 KiB. The manifest needs the capability log.
func Log(level Level, line string) { logLine(level, line) }

// NowMillis is Unix time in milliseconds, the same throughout a call. The manifest
// needs the capability time.
func NowMillis() int64 { return nowMillis() }

// Rand is the next of a sequence that follows from the request's id. The manifest
// needs the capability random.
func Rand() uint64 { return random() }

// Get copies the value under a key into buf, if it fits, and returns its whole
// length, or -1 if there is none. The manifest needs the capability state, for 8
// operations a call.
func Get(s Scope, key, buf []byte) int { return int(kvGet(s, key, buf)) }

// Set stores a value of at most 4 KiB under a key of at most 128 bytes, and says
// whether it did.
func Set(s Scope, key, value []byte) bool { return kvSet(s, key, value) == 0 }

// Add adds to the number under a key, 8 bytes with the lowest first, and returns the
// sum, or the least int64 if refused.
func Add(s Scope, key []byte, delta int64) int64 { return kvAdd(s, key, delta) }

// Abort ends a call that cannot go on; the host decides without the policy and makes a
// fresh instance. A panic does so too, but Go walks the stack first, which takes more
// fuel than there is.
func Abort() { abort() }
