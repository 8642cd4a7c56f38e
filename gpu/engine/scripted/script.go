package scripted

import (
	"time"
)

// Script is everything an engine does besides answering properly. The zero
// value is an engine without faults. A script is not changed once it is given
// to an engine; the YAML names are in DESIGN.md.
type Script struct {
	// Engine overrides Options; it counts at New only.
	Engine  *EngineSection `yaml:"engine"`
	Server  ServerScript   `yaml:"server"`
	Health  []HealthPhase  `yaml:"health"`
	Metrics MetricsScript  `yaml:"metrics"`
	Events  EventsScript   `yaml:"events"`
	KV      KVScript       `yaml:"kv"`
	// Rules are tried in order; the first that matches and is not used up acts.
	Rules []Rule `yaml:"rules"`
}

// EngineSection is the part of Options that a script may set.
type EngineSection struct {
	Model        *string      `yaml:"model"`
	Adapters     *[]string    `yaml:"adapters"`
	MaxContext   *int         `yaml:"max_context"`
	BlockTokens  *int         `yaml:"block_tokens"`
	KVBlocks     *int         `yaml:"kv_blocks"`
	MaxRunning   *int         `yaml:"max_running"`
	MaxWaiting   *int         `yaml:"max_waiting"`
	StepTokens   *int         `yaml:"step_tokens"`
	Ranks        *int         `yaml:"ranks"`
	Timing       *string      `yaml:"timing"` // a preset of core/cost
	Speed        *float64     `yaml:"speed"`
	AnswerTokens *int         `yaml:"answer_tokens"`
	StopEvery    *int         `yaml:"stop_every"`
	HashSeed     *uint64      `yaml:"hash_seed"`
	Link         *LinkSection `yaml:"link"`
}

// LinkSection is [Link] in a script.
type LinkSection struct {
	Setup          Duration `yaml:"setup"`
	TokenBytes     int64    `yaml:"token_bytes"`
	BytesPerSecond int64    `yaml:"bytes_per_second"`
	Groups         int      `yaml:"groups"`
}

// ServerScript is the behaviour of the HTTP server itself.
type ServerScript struct {
	// IdleClose closes a kept-alive connection that has been idle for so long;
	// zero keeps it. It counts at start only.
	IdleClose Duration `yaml:"idle_close"`
	// IdleReset closes it with a reset instead.
	IdleReset bool `yaml:"idle_reset"`
}

// HealthPhase is what /health and /ping answer during a part of the engine's
// life. Phases follow one another; the last one stays.
type HealthPhase struct {
	For    Duration `yaml:"for"`    // length; zero in the last phase
	Status int      `yaml:"status"` // default 200
	Hang   bool     `yaml:"hang"`   // accept and never answer
}

// MetricsScript distorts /metrics.
type MetricsScript struct {
	// Stale freezes the text at what it is when first asked for.
	Stale bool `yaml:"stale"`
	// Omit leaves families out, Rename gives them other names.
	Omit   []string          `yaml:"omit"`
	Rename map[string]string `yaml:"rename"`
	// Set overrides values.
	Set []MetricValue `yaml:"set"`
	// Status, when not zero, is answered instead.
	Status int `yaml:"status"`
}

// MetricValue overrides one family, in all ranks or in one.
type MetricValue struct {
	Name  string `yaml:"name"`
	Rank  *int   `yaml:"rank"`
	Value string `yaml:"value"` // verbatim: 50, NaN, +Inf
}

// KVScript says how the engine meets faults of transfers, as engines do that
// speak for themselves. The defaults are what a well-made engine does.
type KVScript struct {
	// Missing is for a decode leg that lacks a remote key; Stale for one whose
	// blocks are gone or belong to another prompt; Dead for a peer that cannot be
	// reached. Each is recompute (the default: compute the prompt here), error
	// (answer 500), lie (go on with wrong KV: a wrong answer under status 200, and
	// more cached tokens than the prompt has) or die (answer 500, then stop).
	Missing Fault `yaml:"missing"`
	Stale   Fault `yaml:"stale"`
	Dead    Fault `yaml:"dead"`
	// Lease is how long blocks are held for a decode worker; default 30 s.
	Lease Duration `yaml:"lease"`
	// Wait is how long a decode leg waits for its prefill leg; default 30 s.
	Wait Duration `yaml:"wait"`
	// Peer is how long a peer may take to answer at all; default 2 s.
	Peer Duration `yaml:"peer"`
	// Silent leaves received blocks out of the KV events.
	Silent bool `yaml:"silent"`
}

// Fault is a reaction of KVScript.
type Fault string

// The reactions.
const (
	Recompute Fault = "recompute"
	FailLeg   Fault = "error"
	Lie       Fault = "lie"
	Die       Fault = "die"
)

// Rule binds an action to requests.
type Rule struct {
	Name  string `yaml:"name"` // in records; default "rule N"
	Match Match  `yaml:"match"`
	// Times bounds how often the rule acts; 0 is always.
	Times int    `yaml:"times"`
	Do    Action `yaml:"do"`
}

// Match picks requests. Every given condition must hold; none matches all
// requests but those to /scripted.
type Match struct {
	Route  string            `yaml:"route"` // the path; a trailing * matches any rest
	Method string            `yaml:"method"`
	Model  string            `yaml:"model"`
	Body   string            `yaml:"body"`   // substring
	Header map[string]string `yaml:"header"` // substrings; an empty one asks for presence
	Leg    string            `yaml:"leg"`    // aggregated, prefill or decode
	Stream *bool             `yaml:"stream"`
	// Nth picks the requests, counted from 1, among those that meet the other
	// conditions; Every picks each so-manyth.
	Nth   []int `yaml:"nth"`
	Every int   `yaml:"every"`
}

// Action is what happens to a request. At most one of Respond, Raw, Error,
// Hang and Die says what is answered; else the engine generates an answer, bent
// by Generate.
type Action struct {
	// Delay passes before anything else.
	Delay    Duration   `yaml:"delay"`
	Respond  *Respond   `yaml:"respond"`
	Raw      *Payload   `yaml:"raw"` // bytes of the connection, status line included
	Error    *ErrorBody `yaml:"error"`
	Hang     *Hang      `yaml:"hang"`
	Die      *DieAction `yaml:"die"`
	Generate *Generate  `yaml:"generate"`
	// Split cuts what is written into pieces of these sizes; the last repeats.
	// Each piece leaves in its own write, Gap apart.
	Split []int    `yaml:"split"`
	Gap   Duration `yaml:"gap"`
	// Cut breaks the response off.
	Cut *Cut `yaml:"cut"`
	// KV bends a transfer.
	KV *KVAction `yaml:"kv"`
}

// Respond is a fixed HTTP response.
type Respond struct {
	Status  int               `yaml:"status"` // default 200
	Headers map[string]string `yaml:"headers"`
	Payload `yaml:",inline"`
}

// Payload is bytes: at most one of Text, Base64 and Hex, or Parts.
type Payload struct {
	Text   string `yaml:"text"`
	Base64 string `yaml:"base64"`
	Hex    string `yaml:"hex"`
	Parts  []Part `yaml:"parts"`
}

// Part is a piece of a payload, written at once after Delay.
type Part struct {
	Delay  Duration `yaml:"delay"`
	Text   string   `yaml:"text"`
	Base64 string   `yaml:"base64"`
	Hex    string   `yaml:"hex"`
	// Repeat writes the part so many times, delay included.
	Repeat int `yaml:"repeat"`
}

// ErrorBody is an engine's error. Kind fills in what is not given: busy (503),
// rate_limit (429), context (400, with both numbers), model (404), internal
// (500).
type ErrorBody struct {
	Kind       string `yaml:"kind"`
	Status     int    `yaml:"status"`
	Message    string `yaml:"message"`
	Type       string `yaml:"type"`
	Flat       bool   `yaml:"flat"` // without the error envelope, as older engines
	RetryAfter string `yaml:"retry_after"`
}

// Hang accepts and goes silent.
type Hang struct {
	// When is before_headers or after_headers.
	When string `yaml:"when"`
	// For ends the silence by closing the connection; zero waits for the client.
	For Duration `yaml:"for"`
}

// DieAction kills the engine: every connection is reset, nothing is answered.
type DieAction struct {
	// RestartAfter starts it again on the same port; zero leaves it dead.
	RestartAfter Duration `yaml:"restart_after"`
}

// Generate bends a generated answer.
type Generate struct {
	Text   *string `yaml:"text"`   // the answer, instead of a made-up one
	Tokens int     `yaml:"tokens"` // its length, whatever the request asks for
	Finish string  `yaml:"finish"` // finish_reason
	// FirstToken and Token are delays before the first and each later token.
	FirstToken Duration `yaml:"first_token"`
	Token      Duration `yaml:"token"`
	Stall      *Stall   `yaml:"stall"`
	// Error breaks a stream with an error event.
	Error *StreamError `yaml:"error"`
	Usage *UsageFault  `yaml:"usage"`
	// Done false leaves out [DONE].
	Done *bool `yaml:"done"`
	CRLF bool  `yaml:"crlf"`
	// Comment, when not empty, is an SSE comment sent before each event.
	Comment string `yaml:"comment"`
	// NoFinish leaves out finish_reason.
	NoFinish bool `yaml:"no_finish"`
}

// Stall stops producing after so many tokens, keeping the request running.
type Stall struct {
	After int      `yaml:"after"`
	For   Duration `yaml:"for"` // zero: for good
}

// StreamError is an error event after so many tokens.
type StreamError struct {
	After int    `yaml:"after"`
	Body  string `yaml:"body"` // the event's data; default vLLM's error object
	Done  bool   `yaml:"done"` // send [DONE] after it
}

// UsageFault distorts usage.
type UsageFault struct {
	// Mode is omit, in_choices (the final usage rides on a chunk with non-empty
	// choices), continuous (on every chunk) or always (asked for or not).
	Mode       string `yaml:"mode"`
	Prompt     *int   `yaml:"prompt"`
	Completion *int   `yaml:"completion"`
	Cached     *int   `yaml:"cached"`
}

// Cut ends the response after At bytes of its body (of the connection, for a
// raw one); without At, after the last.
type Cut struct {
	At *int `yaml:"at"`
	// How is reset (RST), close (FIN in the middle), end (as if complete) or hang.
	How string   `yaml:"how"`
	For Duration `yaml:"for"` // how long a hang lasts; zero: until the client leaves
}

// KVAction bends a transfer.
type KVAction struct {
	// Prefill leg: Set and Delete change the reply's kv_transfer_params, Null
	// makes them null, Forget frees the blocks at once: the decode side is told
	// that nobody knows them.
	Set    map[string]any `yaml:"set"`
	Delete []string       `yaml:"delete"`
	Null   bool           `yaml:"no_params"`
	Forget bool           `yaml:"forget"`
	// Decode leg: Fail makes the transfer fail with this reason, Stall never ends
	// it (the leg hangs until its deadline), Delay adds to its time, Fault overrides
	// the reaction of the script's kv section.
	Fail  string   `yaml:"fail"`
	Stall bool     `yaml:"stall"`
	Delay Duration `yaml:"delay"`
	Fault Fault    `yaml:"fault"`
}

// EventsScript publishes KV events and distorts them.
type EventsScript struct {
	// Publish is where rank 0's PUB socket listens, host:port; rank r adds r to a
	// non-zero port. Empty publishes nothing. With Connect set the socket connects
	// there instead. Both count at start only.
	Publish string `yaml:"publish"`
	Connect bool   `yaml:"connect"`
	// Replay is where the ROUTER for replay requests listens.
	Replay string `yaml:"replay"`
	Topic  string `yaml:"topic"`
	// Format is map (default) or array; Hashes is int (default), signed or bytes;
	// OuterMap sends the batch as a map too.
	Format   string `yaml:"format"`
	Hashes   string `yaml:"hashes"`
	OuterMap bool   `yaml:"outer_map"`
	// ReplayFrames is 3 (default) or 2.
	ReplayFrames int `yaml:"replay_frames"`
	// Buffer is how many messages replay remembers; default 10000.
	Buffer int `yaml:"buffer"`
	// Drop names messages that are not sent (replay still has them, unless
	// Forget), Swap ones sent after their successor, Repeat ones sent twice.
	Drop   []uint64 `yaml:"drop"`
	Forget []uint64 `yaml:"forget"`
	Swap   []uint64 `yaml:"swap"`
	Repeat []uint64 `yaml:"repeat"`
	// RestartAt numbers from 0 again after that many messages, once.
	RestartAt uint64 `yaml:"restart_at"`
	// Garbage sends these messages as bytes that are no event batch.
	Garbage []uint64 `yaml:"garbage"`
}

// Duration is a time.Duration written as 250ms or 2s in YAML.
type Duration time.Duration

// D is the duration.
func (d Duration) D() time.Duration { return time.Duration(d) }
