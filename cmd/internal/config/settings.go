package config

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Config is every setting of every command. Its fields are described by the
// table below, which is also what fills them.
type Config struct {
	Log     Log
	TLS     TLS
	Gateway Gateway
	Planner Planner
	Cluster Cluster
	Policy  Policy
	Scale   Scale
	Worker  Worker
	Dev     Dev
}

// Log is how a process speaks.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // text, json
}

// TLS is how planners and workers know one another, on the control port and
// on the KV transfer port.
type TLS struct {
	Cert, Key string // this process's, PEM files
	CA        string // who may be a planner or a worker, PEM file
	Plaintext bool   // do without, on a network that is trusted
}

// Enabled reports whether a certificate is configured.
func (t TLS) Enabled() bool { return t.Cert != "" }

// Gateway is the front of the house: the listener that clients see.
type Gateway struct {
	ID                string // as a member of the cluster; empty: by its address
	Listen            string
	Admin             string   // loopback; empty: none
	Engines           []string // base URLs; without planners
	Policy            string   // a native policy of core/route, or files; see PolicyParts
	Disaggregate      string   // auto, never, always
	MinPrompt         int      // tokens from which auto considers moving KV
	MaxBody           unit.Bytes
	MaxInFlight       int
	RequestTimeout    time.Duration
	FirstTokenTimeout time.Duration
	IdleTimeout       time.Duration // between two tokens
	ConnectTimeout    time.Duration
	QueueTime         time.Duration // longest wait while all workers are busy
	HoldTime          time.Duration // longest wait while there is no worker
	QueueSize         int           // requests that wait for one model
	Attempts          int           // workers a request is offered to
	RetryPercent      int           // of requests that may be offered again
	MigrationLimit    int           // of one stream
	SuspectTime       time.Duration // of a worker's silence
	Models            []string      // known before a worker serves them
	MaxStops          int
	MaxDepth          int
	MaxHeader         unit.Bytes
	Heartbeat         time.Duration // SSE comments while nothing arrives; 0: none
	UnreadyTime       time.Duration // between "not ready" and not accepting
	DrainTimeout      time.Duration
	Explain           bool
	Tokenizers        []string // MODEL=PATH
	Admission         string   // a native policy of core/admit
	MaxClass          string   // the highest that clients may claim; empty: standard
	TenantHeader      string   // set by a proxy that is trusted; empty: none
	TenantKeys        string   // file of tenants and their keys; empty: none
}

// DefaultAdmin is gateway.admin unless something else is set.
const DefaultAdmin = "127.0.0.1:8091"

// Planner is a member of the replicated core.
type Planner struct {
	ID       string
	Listen   string // where workers register
	DataDir  string
	LeaseTTL time.Duration
	Gateway  bool // serve clients too
}

// Cluster is how planners and gateways find one another and know one another,
// on the peer port.
type Cluster struct {
	Join            []string // peer addresses of members, any of them
	PeerListen      string   // empty: DefaultPeer for planners, any port for gateways
	PeerAdvertise   string   // host, or host:port; empty: the listener's own
	BootstrapExpect int      // planners that found a cluster together
	TokenFile       string   // empty: TokenName in the planner's data folder
	PeerCert        string   // instead of a token: the operator's own authority
	PeerKey         string
	PeerCA          string
	RaftMultiplier  int // of Raft's timers
	ReapAfter       time.Duration
}

// DefaultPeer is where planners listen for other members unless cluster.peer-listen
// is set.
const DefaultPeer = "127.0.0.1:8092"

// TokenName is the file in the planner's data folder that holds the cluster's
// secret unless cluster.token-file is set.
const TokenName = "cluster.token"

// Certificates reports whether members know one another by the operator's own
// certificates rather than by a token.
func (c Cluster) Certificates() bool { return c.PeerCert != "" }

// Policy is which policies in Wasm a node takes, and where it keeps their code.
type Policy struct {
	TrustedKeys   []string // files of public keys
	AllowUnsigned bool
	CacheDir      string // of compiled code; empty: below the data folder, or thrown away at the end
}

// Scale is how the leader sizes pools, and who makes the fleet so.
type Scale struct {
	Policy   string // off, or a native policy of core/scale
	Interval time.Duration
	Budget   int      // most workers of all pools; 0: no bound but the pools' own
	Pools    []string // [MODEL/]ROLE=MIN-MAX; see PoolLimit
	TTFT     time.Duration
	ITL      time.Duration
	Hold     time.Duration // that a pool must have wanted fewer
	Actuator string        // advisory, process
	Starts   int           // worker processes that start at once
}

// On reports whether pools are sized.
func (s Scale) On() bool { return s.Policy != ScaleOff }

// ScaleOff is the scale.policy that sizes nothing.
const ScaleOff = "off"

// Worker is one engine and what stands beside it.
type Worker struct {
	ID           string
	Engine       string // cpu, scripted
	Role         string // prefill, decode, both
	Model        string // a catalogue name or a path
	ServedName   string
	Planners     []string // any of the cluster's
	Listen       string
	Transfer     string
	Advertise    string
	PlainAPI     bool // serve the API beyond loopback, on a network that is trusted
	TransferAs   string
	Threads      int
	KVBlocks     int
	MaxRunning   int
	StepTokens   int
	Exact        bool
	Script       string
	Labels       []string
	DrainTimeout time.Duration
}

// Dev is the laptop: everything in one command.
type Dev struct {
	Engine       string // auto, cpu, scripted
	Model        string
	Threads      int
	Disaggregate string // instead of gateway.disaggregate
	DataDir      string
	Ask          string
	Scale        bool
}

// setting is one row of the table.
type setting struct {
	key   string // section.name
	value value
	def   string
	help  string // one clause, lower case, no full stop
}

// split is the two parts of the key.
func (s *setting) split() (section, name string) {
	section, name, _ = strings.Cut(s.key, ".")
	return section, name
}

// env is the environment variable of the setting.
func (s *setting) env() string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.key))
}

func (s *setting) takes() string { return s.value.kind() }

// EnvPrefix begins the name of every environment variable that is read.
const EnvPrefix = "YARDMASTER_"

const (
	day          = 24 * time.Hour
	minHeartbeat = 100 * time.Millisecond
	maxInt       = math.MaxInt32
)

// table binds every setting to its place in c.
func (c *Config) table() []setting {
	return []setting{
		{"log.level", choice(&c.Log.Level, "debug", "info", "warn", "error"), "info", "least severity that is logged"},
		{"log.format", choice(&c.Log.Format, "text", "json"), "text", "form of a log line"},

		{"tls.cert", path(&c.TLS.Cert), "", "certificate of this process towards planners and workers, a PEM file"},
		{"tls.key", path(&c.TLS.Key), "", "key of the certificate, a PEM file"},
		{"tls.ca", path(&c.TLS.CA), "", "authority that planners' and workers' certificates must come from, a PEM file"},
		{"tls.plaintext", boolean(&c.TLS.Plaintext), "false", "do without TLS beyond loopback, on a network that is trusted"},

		{"gateway.id", nodeName(&c.Gateway.ID, true), "", "name of this gateway in the cluster, the default is made of its address; six letters are put at its end that are new at each start, unless cluster.peer-cert names it"},
		{"gateway.listen", address(&c.Gateway.Listen, false), "127.0.0.1:8080", "address of the client API"},
		{"gateway.admin", loopback(&c.Gateway.Admin), DefaultAdmin, "loopback address of the admin API, which explains placements and operates the cluster, and of a planner's probes and metrics if it has no gateway; empty serves none; several nodes on one machine need one each"},
		{"gateway.engine", urls(&c.Gateway.Engines), "", "engines to serve without planners, by URL; a /v1 at its end is left out"},
		{"gateway.policy", policy(&c.Gateway.Policy), "sticky", "how a worker is chosen among those that could serve: " + strings.Join(Policies(), ", ") + "; several, weighted, make a blend: sticky=3,least-request=1; parameters in brackets: sticky(hold=40); without planners also files of policies in Wasm: ./mine.wasm"},
		{"gateway.disaggregate", choice(&c.Gateway.Disaggregate, "auto", "never", "always"), "auto", "whether prompts are computed on prefill workers: where it pays, never, or whenever there is a pair"},
		{"gateway.min-prompt", integer(&c.Gateway.MinPrompt, 1, maxInt), "256", "prompt tokens from which auto considers a prefill worker"},
		{"gateway.max-body", size(&c.Gateway.MaxBody, 1<<10, 1<<30), "64MiB", "largest request body"},
		{"gateway.max-in-flight", integer(&c.Gateway.MaxInFlight, 1, 1<<20), "8192", "most requests at once; more get status 429"},
		{"gateway.request-timeout", duration(&c.Gateway.RequestTimeout, time.Second, day), "10m", "longest life of a request"},
		{"gateway.first-token-timeout", duration(&c.Gateway.FirstTokenTimeout, time.Second, day), "5m", "longest wait for a stream's first token; an answer that is not streamed shows nothing before it is complete, and has request-timeout"},
		{"gateway.idle-timeout", duration(&c.Gateway.IdleTimeout, 100*time.Millisecond, day), "2m", "longest silence between two tokens of a stream"},
		{"gateway.connect-timeout", duration(&c.Gateway.ConnectTimeout, 10*time.Millisecond, time.Minute), "2s", "longest wait for a connection to an engine"},
		{"gateway.queue-time", duration(&c.Gateway.QueueTime, 0, day), "30s", "longest wait for a worker while all are busy; then status 429"},
		{"gateway.hold-time", duration(&c.Gateway.HoldTime, 0, day), "5s", "longest wait for a worker while there is none, e.g. because the first is starting; then status 503"},
		{"gateway.queue-size", integer(&c.Gateway.QueueSize, 1, 1<<20), "1024", "most requests that wait for one model; more get status 429"},
		{"gateway.attempts", integer(&c.Gateway.Attempts, 1, 16), "3", "most workers that a request is offered to"},
		{"gateway.retry-percent", integer(&c.Gateway.RetryPercent, 0, 100), "20", "requests in a hundred that may be offered to another worker, beyond a burst of 100; 0 allows none"},
		{"gateway.migration-limit", integer(&c.Gateway.MigrationLimit, 0, 100), "3", "times that a stream whose worker is lost goes on elsewhere, for engines that can; 0 never"},
		{"gateway.suspect-time", duration(&c.Gateway.SuspectTime, 100*time.Millisecond, day), "5s", "silence of a worker with streams, besides the time its prompts take, after which others are preferred"},
		{"gateway.model", names(&c.Gateway.Models), "", "models that are known, and waited for, before a worker serves them"},
		{"gateway.max-stops", integer(&c.Gateway.MaxStops, 1, 4096), "64", "most stop strings of a request"},
		{"gateway.max-depth", integer(&c.Gateway.MaxDepth, 8, 1024), "128", "deepest nesting of a request body"},
		{"gateway.max-header", size(&c.Gateway.MaxHeader, 1<<10, 16<<20), "64KiB", "largest request header"},
		{"gateway.heartbeat", duration(&c.Gateway.Heartbeat, 0, time.Hour), "15s", "interval of SSE comments while an engine is silent; 0 sends none"},
		{"gateway.unready-time", duration(&c.Gateway.UnreadyTime, 0, time.Hour), "1s", "pause at shutdown between failing /readyz and refusing connections, for load balancers to notice; none in dev"},
		{"gateway.drain-timeout", duration(&c.Gateway.DrainTimeout, 0, day), "30s", "time for running requests at shutdown"},
		{"gateway.explain", boolean(&c.Gateway.Explain), "false", "tell every client in x-yardmaster-path how its request was placed; by default those that send x-yardmaster-explain: 1"},
		{"gateway.tokenizer", tokenizers(&c.Gateway.Tokenizers), "", "tokenizers of models, so that prompts are known by their tokens: a .gguf file, a tokenizer.json, or scripted for the scripted engine's own"},

		{"gateway.admission", admission(&c.Gateway.Admission), "open", "who is served while no admission policy is bound: " + strings.Join(admissions(), ", ")},
		{"gateway.max-class", class(&c.Gateway.MaxClass), "standard", "highest class that a client may claim for a request by the header x-yardmaster-class, unless its key's line in gateway.tenant-keys says another: background, batch, standard, critical"},
		{"gateway.tenant-header", text(&c.Gateway.TenantHeader), "", "header in which a trusted proxy names the tenant of a request; clients that reach the gateway themselves could name any"},
		{"gateway.tenant-keys", path(&c.Gateway.TenantKeys), "", "file of API keys, a tenant and a key a line, the key as it is or as sha256: and its hash, and the highest class that may be claimed with it, if that is not gateway.max-class; requests without a known key get status 401, and the header counts for nothing"},

		{"planner.id", nodeName(&c.Planner.ID, false), "planner-0", "name of this planner in the cluster, another for each, kept across restarts"},
		{"planner.listen", address(&c.Planner.Listen, false), "127.0.0.1:8090", "address where workers register"},
		{"planner.data-dir", path(&c.Planner.DataDir), "", "folder of the log and the snapshots; the planner command needs one"},
		{"planner.lease-ttl", duration(&c.Planner.LeaseTTL, 100*time.Millisecond, time.Hour), "3s", "silence after which a worker is taken for dead"},
		{"planner.gateway", boolean(&c.Planner.Gateway), "true", "serve clients from this process too"},

		{"cluster.join", addresses(&c.Cluster.Join), "", "peer addresses of some members of the cluster, to find it by; a planner without any founds one alone, one with some does not"},
		{"cluster.peer-listen", address(&c.Cluster.PeerListen, true), "", "address of the peer port, the one TLS port on which members talk; the default is " + DefaultPeer + " for planners, any port of 127.0.0.1 for gateways"},
		{"cluster.peer-advertise", advertise(&c.Cluster.PeerAdvertise), "", "host, or host:port, that other members reach the peer port by; the default is the listen address"},
		{"cluster.bootstrap-expect", integer(&c.Cluster.BootstrapExpect, 1, 9), "1", "planners that found the cluster together, an odd number, each started with the same; with cluster.join, 1 only joins a cluster that exists"},
		{"cluster.token-file", path(&c.Cluster.TokenFile), "", "file of the secret that makes a process a member, the same on all; a token a line, the first is in use, the others are still trusted; the default is " + TokenName + " in the planner's data folder, and one that founds alone creates it"},
		{"cluster.peer-cert", path(&c.Cluster.PeerCert), "", "certificate of this node on the peer port instead of a token, its DNS name the node's id, a PEM file"},
		{"cluster.peer-key", path(&c.Cluster.PeerKey), "", "key of that certificate, a PEM file"},
		{"cluster.peer-ca", path(&c.Cluster.PeerCA), "", "authority that members' certificates must come from, a PEM file"},
		{"cluster.raft-multiplier", integer(&c.Cluster.RaftMultiplier, 1, 10), "1", "factor on Raft's timers (300 ms to miss a leader) for slow machines and networks; the same on all planners and gateways"},
		{"cluster.reap-after", duration(&c.Cluster.ReapAfter, time.Second, day), "1m0s", "silence after which a gateway is no longer a member"},

		{"policy.trusted-key", paths(&c.Policy.TrustedKeys), "", "public keys whose signatures on uploaded policies count, PEM files, the planners' where there are any; yardmaster policy keygen makes a pair"},
		{"policy.allow-unsigned", boolean(&c.Policy.AllowUnsigned), "false", "take uploaded policies that nobody signed, for the planners to say where there are any; dev does, unless it trusts a key"},
		{"policy.cache-dir", path(&c.Policy.CacheDir), "", "folder of policies' compiled code, which only this user may write; the default is policies in the planner's data folder, and a folder that is thrown away for others"},

		{"scale.policy", autoscaling(&c.Scale.Policy), ScaleOff, "how the leader sizes pools of workers, unless an autoscaler is bound with yardmaster policy promote: " + strings.Join(ScalePolicies(), ", ") + "; off sizes none; the same on all planners"},
		{"scale.interval", duration(&c.Scale.Interval, 100*time.Millisecond, time.Hour), "5s", "time between two looks at the pools"},
		{"scale.budget", integer(&c.Scale.Budget, 0, scale.MaxReplicas), "0", "most workers of all pools together at any moment, those that drain included; 0 bounds only each pool"},
		{"scale.pool", pools(&c.Scale.Pools), "", "fewest and most workers of pools: llama/decode=1-4, or decode=1-4 for all models; a most that is left out, 1-, is no bound; pools that are not named keep at least 1"},
		{"scale.ttft", duration(&c.Scale.TTFT, 0, time.Hour), "0s", "wanted time to first token, for policies that plan by it; 0 wants none"},
		{"scale.itl", duration(&c.Scale.ITL, 0, time.Hour), "0s", "wanted time between tokens, for policies that plan by it; 0 wants none"},
		{"scale.hold", duration(&c.Scale.Hold, 0, day), "2m0s", "time that a pool must have wanted fewer workers before it shrinks"},
		{"scale.actuator", choice(&c.Scale.Actuator, "advisory", "process"), "advisory", "what is done about the plan: advisory says it in metrics, the log and yardmaster scale show; process starts and drains workers of the worker section on this machine, on one planner only"},
		{"scale.starts", integer(&c.Scale.Starts, 1, 64), "2", "worker processes that may be starting at once"},

		{"worker.id", text(&c.Worker.ID), "", "name of this worker, kept across restarts; the default is its role, its host unless that is loopback, and its port, so that with port 0 each start is a new worker"},
		{"worker.engine", choice(&c.Worker.Engine, "cpu", "scripted"), "cpu", "engine to host"},
		{"worker.role", choice(&c.Worker.Role, "prefill", "decode", "both"), "both", "phases to serve"},
		{"worker.model", text(&c.Worker.Model), "smollm2", "model to serve: a name (yardmaster model list shows them) or the path of a .gguf file"},
		{"worker.served-name", text(&c.Worker.ServedName), "", "model name that clients use; the default is the model's own"},
		{"worker.planner", addresses(&c.Worker.Planners), "127.0.0.1:8090", "planners to register with: several of one cluster, any of which will do; empty serves alone"},
		{"worker.listen", address(&c.Worker.Listen, false), "127.0.0.1:0", "address of the engine's API and metrics"},
		{"worker.plain-api", boolean(&c.Worker.PlainAPI), "false", "serve the engine's API, which has no TLS of its own yet, beyond loopback, on a network that is trusted"},
		{"worker.transfer", address(&c.Worker.Transfer, false), "127.0.0.1:0", "address of the KV transfer endpoint"},
		{"worker.advertise", text(&c.Worker.Advertise), "", "host name that others reach this worker by; the default is the listen address's host"},
		{"worker.transfer-advertise", address(&c.Worker.TransferAs, true), "", "address that others reach the KV transfer endpoint by; the default is its own, with worker.advertise as host"},
		{"worker.threads", integer(&c.Worker.Threads, 0, 1024), "0", "threads of the CPU engine; 0 is one a core"},
		{"worker.kv-blocks", integer(&c.Worker.KVBlocks, 0, maxInt), "0", "KV blocks of the CPU engine; 0 derives them from the model's context"},
		{"worker.max-running", integer(&c.Worker.MaxRunning, 1, 4096), "32", "requests computed at once"},
		{"worker.step-tokens", integer(&c.Worker.StepTokens, 16, 1<<20), "512", "token budget of one engine step"},
		{"worker.exact", boolean(&c.Worker.Exact), "false", "compute with f32 activations: slower, and equal to the reference"},
		{"worker.script", path(&c.Worker.Script), "", "script of the scripted engine; without one it answers by its cost model"},
		{"worker.label", labels(&c.Worker.Labels), "", "facts about this worker"},
		{"worker.drain-timeout", duration(&c.Worker.DrainTimeout, 0, day), "30s", "time for running requests at shutdown"},

		{"dev.engine", choice(&c.Dev.Engine, "auto", "cpu", "scripted"), "auto", "engine of the two workers; auto is cpu when the model can be had"},
		{"dev.model", text(&c.Dev.Model), "smollm2", "model to serve: a name (yardmaster model list shows them) or the path of a .gguf file"},
		{"dev.threads", integer(&c.Dev.Threads, 0, 1024), "0", "threads of each worker; 0 is one a core"},
		{"dev.disaggregate", choice(&c.Dev.Disaggregate, "auto", "never", "always"), "always", "as gateway.disaggregate, which it replaces here so that short questions are disaggregated too"},
		{"dev.data-dir", path(&c.Dev.DataDir), "", "folder of the planner's log; the default is thrown away at the end"},
		{"dev.ask", text(&c.Dev.Ask), "", "question to answer once everything is up"},
		{"dev.scale", boolean(&c.Dev.Scale), "false", "grow and shrink both pools with the load, by scale.policy, or " + ScalePolicies()[1] + " where that is off, to 8 workers unless scale.budget says otherwise"},
	}
}

// sectionsOf lists the sections of a table in its order.
func sectionsOf(table []setting) []string {
	var out []string
	for i := range table {
		if section, _ := table[i].split(); !slices.Contains(out, section) {
			out = append(out, section)
		}
	}
	return out
}

// namesOf lists the names of one section in the table's order.
func namesOf(table []setting, section string) []string {
	var out []string
	for i := range table {
		if s, name := table[i].split(); s == section {
			out = append(out, name)
		}
	}
	return out
}

// find is the row of key, or nil.
func find(table []setting, key string) *setting {
	for i := range table {
		if table[i].key == key {
			return &table[i]
		}
	}
	return nil
}
