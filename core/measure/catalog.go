package measure

// Every metric of Yardmaster, named once. A name ends in its unit. Families
// without labels have one series.

var (
	secondsFine   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	secondsCoarse = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 300}
)

// named bounds the series of families that name models or workers, which are as
// many as operators have: with ten models, each with its routes and outcomes, the
// default is used up.
const named = 4096

// Gateway: what clients experienced.
var (
	// Requests counts finished requests by outcome: ok, client_error, saturated,
	// no_capacity, upstream, timeout, canceled, internal.
	Requests = Desc{Name: "yardmaster_requests_total", Type: CounterType, Labels: []string{"model", "route", "outcome"}, MaxSeries: named, Help: "Finished requests by outcome."}
	// Arrivals counts requests as they come, those that will wait or be refused among
	// them.
	Arrivals = Desc{Name: "yardmaster_request_arrivals_total", Type: CounterType, Labels: []string{"model"}, MaxSeries: named, Help: "Requests for a model that is known, as they come."}
	// RequestsInFlight is requests accepted and not finished. It returns to zero.
	RequestsInFlight = Desc{Name: "yardmaster_requests_in_flight", Type: GaugeType, Help: "Requests accepted and not yet finished."}
	// TTFT is accept to first token, queue included.
	TTFT = Desc{Name: "yardmaster_time_to_first_token_seconds", Type: HistogramType, Labels: []string{"model", "path"}, MaxSeries: named, Buckets: secondsCoarse, Help: "From accepting a request to its first token, queue included."}
	// ITL is each gap between token events of one stream.
	ITL = Desc{Name: "yardmaster_inter_token_latency_seconds", Type: HistogramType, Labels: []string{"model"}, MaxSeries: named, Buckets: secondsFine, Help: "Each gap between two token events of a stream."}
	// TPOT is (end to end - TTFT) / (output tokens - 1).
	TPOT = Desc{Name: "yardmaster_time_per_output_token_seconds", Type: HistogramType, Labels: []string{"model"}, MaxSeries: named, Buckets: secondsFine, Help: "(end-to-end time - TTFT) / (output tokens - 1), per request."}
	// QueueWait is accept to dispatch.
	QueueWait = Desc{Name: "yardmaster_queue_wait_seconds", Type: HistogramType, Labels: []string{"model"}, MaxSeries: named, Buckets: secondsCoarse, Help: "From accepting a request to dispatching its first leg."}
	// PromptTokens counts prompt tokens, as the engines' usage says.
	PromptTokens = Desc{Name: "yardmaster_prompt_tokens_total", Type: CounterType, Labels: []string{"model"}, MaxSeries: named, Help: "Prompt tokens, from the engines' usage."}
	// CachedTokens is the part of the prompt the engine had in its prefix cache. Of a
	// prompt that another worker computed it is what that one had; what was moved is in
	// TransferBytes.
	CachedTokens = Desc{Name: "yardmaster_cached_prompt_tokens_total", Type: CounterType, Labels: []string{"model"}, MaxSeries: named, Help: "Prompt tokens that the engine which computed the prompt found in its prefix cache, as far as it says; KV that was moved is not counted."}
	// OutputTokens counts generated tokens, as the usage says.
	OutputTokens = Desc{Name: "yardmaster_output_tokens_total", Type: CounterType, Labels: []string{"model"}, MaxSeries: named, Help: "Generated tokens, from the engines' usage."}
	// Paths counts how requests were placed: path is aggregated or disaggregated,
	// reason is why.
	Paths = Desc{Name: "yardmaster_paths_total", Type: CounterType, Labels: []string{"model", "path", "reason"}, MaxSeries: named, Help: "Placement decisions by path and reason."}
	// WorkerInFlight is this gateway's own requests per worker and phase.
	WorkerInFlight = Desc{Name: "yardmaster_worker_in_flight", Type: GaugeType, Labels: []string{"worker", "phase"}, MaxSeries: named, Help: "This gateway's requests in flight per worker and phase."}
	// Failovers counts requests sent to a runner-up: the first choice did not
	// accept the connection, was another incarnation, or refused as busy or draining.
	Failovers = Desc{Name: "yardmaster_failovers_total", Type: CounterType, Labels: []string{"model"}, MaxSeries: named, Help: "Requests sent to a runner-up because the worker chosen before did not take them."}
	// Migrations counts streams that went on elsewhere after their worker was lost.
	Migrations = Desc{Name: "yardmaster_migrations_total", Type: CounterType, Labels: []string{"model"}, MaxSeries: named, Help: "Streams continued on another worker because theirs was lost."}
	// Waiting is requests in the queue of each model. It returns to zero.
	Waiting = Desc{Name: "yardmaster_queue_depth", Type: GaugeType, Labels: []string{"model"}, MaxSeries: named, Help: "Requests that wait for a worker."}
	// RetriesRefused counts failovers that the retry budget did not allow.
	RetriesRefused = Desc{Name: "yardmaster_retries_refused_total", Type: CounterType, Help: "Failovers that the retry budget did not allow."}
	// Admissions counts requests that admission did not simply serve: action is queue,
	// reject, degrade, or credit where a quota's ledger could not be reached. policy is
	// whose verdict it was, name@version where it was uploaded; quota is no policy.
	Admissions = Desc{Name: "yardmaster_admissions_total", Type: CounterType, Labels: []string{"action", "reason", "policy"}, MaxSeries: named, Help: "Requests that admission queued, rejected, shortened, or let in on credit, by reason and by the policy that said so."}
	// TenantRequests counts the finished requests of tenants by fate: admitted, or
	// refused by admission, a quota or a full queue.
	TenantRequests = Desc{Name: "yardmaster_tenant_requests_total", Type: CounterType, Labels: []string{"tenant", "fate"}, MaxSeries: named, Help: "Finished requests of tenants: admitted, or refused by admission, a quota or a full queue."}
	// TenantTokens counts their tokens: prompt and output of those that were served, as
	// the engines' usage says, and refused, the estimated prompts of the others.
	TenantTokens = Desc{Name: "yardmaster_tenant_tokens_total", Type: CounterType, Labels: []string{"tenant", "kind"}, MaxSeries: named, Help: "Tokens of tenants: prompt and output from the engines' usage, and refused, the estimated prompts of requests that were refused."}
	// Ejections counts workers left out, by reason: connect, stale_epoch,
	// no_progress.
	Ejections = Desc{Name: "yardmaster_worker_ejections_total", Type: CounterType, Labels: []string{"worker", "reason"}, MaxSeries: named, Help: "Workers taken out of routing by this gateway."}
	// DecisionSeconds is the time of one routing decision.
	DecisionSeconds = Desc{Name: "yardmaster_decision_seconds", Type: HistogramType, Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 1e-3}, Help: "Time of one routing decision."}
)

// Planner.
var (
	// Workers counts registered workers by role and state (ready, draining).
	Workers = Desc{Name: "yardmaster_workers", Type: GaugeType, Labels: []string{"model", "role", "state"}, MaxSeries: named, Help: "Registered workers."}
	// RaftApplied is the last applied index.
	RaftApplied = Desc{Name: "yardmaster_raft_applied_index", Type: GaugeType, Labels: []string{"group"}, Help: "Last log index applied, Raft's own entries included."}
	// RaftLag is commit index less applied index.
	RaftLag = Desc{Name: "yardmaster_raft_lag_entries", Type: GaugeType, Labels: []string{"group"}, Help: "Entries that this node knows to be committed and has not applied yet."}
	// RaftLeader is 1 on the leader.
	RaftLeader = Desc{Name: "yardmaster_raft_leader", Type: GaugeType, Labels: []string{"group"}, Help: "1 while this node leads the group."}
	// RaftCommit is proposal to committed and applied.
	RaftCommit = Desc{Name: "yardmaster_raft_commit_seconds", Type: HistogramType, Labels: []string{"group"}, Buckets: secondsFine, Help: "From proposing an entry to its application."}
	// RaftCommitIndex is the last index known to be committed.
	RaftCommitIndex = Desc{Name: "yardmaster_raft_commit_index", Type: GaugeType, Labels: []string{"group"}, Help: "Last log index known to be committed."}
	// RaftTerm is the current term.
	RaftTerm = Desc{Name: "yardmaster_raft_term", Type: GaugeType, Labels: []string{"group"}, Help: "Current Raft term."}
	// RaftLastContact is the time since the leader was heard of, 0 on the leader.
	RaftLastContact = Desc{Name: "yardmaster_raft_last_contact_seconds", Type: GaugeType, Labels: []string{"group"}, Help: "Time since this node last heard of the leader; 0 on the leader."}
	// RaftLeaderChanges counts the times that another node was seen to lead.
	RaftLeaderChanges = Desc{Name: "yardmaster_raft_leader_changes_total", Type: CounterType, Labels: []string{"group"}, Help: "Times that this node saw another leader than before."}
	// RaftOldestLog is the age of the oldest entry in the log.
	RaftOldestLog = Desc{Name: "yardmaster_raft_oldest_log_seconds", Type: GaugeType, Labels: []string{"group"}, Help: "Age of the oldest entry in the log."}
	// RaftTrailing is for how long a member may be away before it needs a
	// snapshot, at the present rate of entries. It must exceed the seconds that
	// writing, sending and restoring one takes.
	RaftTrailing = Desc{Name: "yardmaster_raft_trailing_log_seconds", Type: GaugeType, Labels: []string{"group"}, Help: "Time that the entries kept behind a snapshot cover at the present rate. It must exceed a snapshot's transfer and restore."}
	// RaftSnapshotSeconds is the time to write a snapshot.
	RaftSnapshotSeconds = Desc{Name: "yardmaster_raft_snapshot_seconds", Type: HistogramType, Labels: []string{"group"}, Buckets: secondsCoarse, Help: "Time to write a snapshot."}
	// RaftSnapshotFailures counts snapshots that could not be written.
	RaftSnapshotFailures = Desc{Name: "yardmaster_raft_snapshot_failures_total", Type: CounterType, Labels: []string{"group"}, Help: "Snapshots that could not be written; the log grows until one is."}
	// RaftRestoreSeconds is the time to restore a snapshot.
	RaftRestoreSeconds = Desc{Name: "yardmaster_raft_restore_seconds", Type: HistogramType, Labels: []string{"group"}, Buckets: secondsCoarse, Help: "Time to restore the state from a snapshot."}
	// RaftSnapshotBytes is the size of the newest snapshot written here.
	RaftSnapshotBytes = Desc{Name: "yardmaster_raft_snapshot_bytes", Type: GaugeType, Labels: []string{"group"}, Help: "Size of the newest snapshot that this node wrote."}
	// RaftDiskFree is the free space under the log.
	RaftDiskFree = Desc{Name: "yardmaster_raft_disk_free_bytes", Type: GaugeType, Labels: []string{"group"}, Help: "Free space of the disk under the log."}
	// RaftGuardTrips counts the guards' interventions by guard.
	RaftGuardTrips = Desc{Name: "yardmaster_raft_guard_trips_total", Type: CounterType, Labels: []string{"group", "guard"}, Help: "Interventions of the guards around the Raft library."}
	// PeerRefusals counts connections and requests refused at the peer port by
	// reason: foreign, expired, not_yet_valid, no_certificate, bad_certificate,
	// not_tls, timeout, protocol, busy, closing, impostor, handshake.
	PeerRefusals = Desc{Name: "yardmaster_peer_refusals_total", Type: CounterType, Labels: []string{"reason"}, Help: "Connections and requests refused at the port between nodes, by reason."}
	// PeerConnections is open connections between nodes by direction: in, out. It
	// returns to zero.
	PeerConnections = Desc{Name: "yardmaster_peer_connections", Type: GaugeType, Labels: []string{"direction"}, Help: "Open connections to other nodes, by who made them: in or out."}
	// PolicyBytes is the bytes of policies that this node holds.
	PolicyBytes = Desc{Name: "yardmaster_policy_bytes", Type: GaugeType, Help: "Bytes of policies' modules that this node holds."}
	// PolicyMissing is the versions whose bytes this node lacks. It returns to zero.
	PolicyMissing = Desc{Name: "yardmaster_policy_missing", Type: GaugeType, Help: "Versions of policies whose bytes this node does not have yet."}
	// PolicyFetches counts attempts to take a policy's bytes from another node by
	// outcome: ok, missing, false (other bytes than asked for), failed.
	PolicyFetches = Desc{Name: "yardmaster_policy_fetches_total", Type: CounterType, Labels: []string{"outcome"}, Help: "Attempts to take a policy's bytes from another node, by outcome."}
	// LeaseExpiries counts workers expired for not renewing.
	LeaseExpiries = Desc{Name: "yardmaster_lease_expiries_total", Type: CounterType, Help: "Workers expired because they stopped renewing their lease."}
)

// Worker: the engine and its KV cache.
var (
	// PhaseBusy is seconds of engine steps spent on each phase (prefill, decode);
	// its rate is the utilisation of that phase.
	PhaseBusy = Desc{Name: "yardmaster_phase_busy_seconds_total", Type: CounterType, Labels: []string{"phase"}, Help: "Engine time by phase; the rate is that phase's utilisation."}
	// PhaseTokens counts tokens computed per phase.
	PhaseTokens = Desc{Name: "yardmaster_phase_tokens_total", Type: CounterType, Labels: []string{"phase"}, Help: "Tokens computed by phase."}
	// EngineRunning is requests being computed.
	EngineRunning = Desc{Name: "yardmaster_engine_running", Type: GaugeType, Help: "Requests the engine is computing."}
	// EngineWaiting is requests the engine has accepted and not started.
	EngineWaiting = Desc{Name: "yardmaster_engine_waiting", Type: GaugeType, Help: "Requests waiting inside the engine."}
	// KVBlocksUsed counts blocks held by running requests.
	KVBlocksUsed = Desc{Name: "yardmaster_kv_blocks_used", Type: GaugeType, Help: "KV blocks held by requests."}
	// KVBlocksCached counts blocks that hold reusable prefixes and no request.
	KVBlocksCached = Desc{Name: "yardmaster_kv_blocks_cached", Type: GaugeType, Help: "KV blocks kept for reuse, held by no request."}
	// KVBlocksFree counts blocks a new request can take, cached ones included.
	KVBlocksFree = Desc{Name: "yardmaster_kv_blocks_free", Type: GaugeType, Help: "KV blocks a new request can take, cached ones included."}
	// PrefixQueries counts prompt tokens looked up in the engine's prefix cache.
	PrefixQueries = Desc{Name: "yardmaster_prefix_query_tokens_total", Type: CounterType, Help: "Prompt tokens looked up in the engine's prefix cache."}
	// PrefixHits counts prompt tokens found in the engine's prefix cache.
	PrefixHits = Desc{Name: "yardmaster_prefix_hit_tokens_total", Type: CounterType, Help: "Prompt tokens found in the engine's prefix cache."}
	// Preemptions counts requests put back for want of blocks.
	Preemptions = Desc{Name: "yardmaster_preemptions_total", Type: CounterType, Help: "Requests put back to waiting because KV blocks ran out."}
	// EngineRequests counts what the engine finished, by finish reason.
	EngineRequests = Desc{Name: "yardmaster_engine_requests_total", Type: CounterType, Labels: []string{"finish"}, Help: "Requests the engine finished, by reason."}
)

// Worker: KV transfer.
var (
	// TransferBytes counts payload bytes by transport and direction (sent, received).
	TransferBytes = Desc{Name: "yardmaster_transfer_bytes_total", Type: CounterType, Labels: []string{"transport", "direction"}, Help: "KV bytes moved."}
	// TransferSeconds is reserve to commit, on the decode side.
	TransferSeconds = Desc{Name: "yardmaster_transfer_seconds", Type: HistogramType, Labels: []string{"transport", "outcome"}, Buckets: secondsCoarse, Help: "Life of a transfer from reservation to commit or abort."}
	// TransferExposed is the end of prefill to commit: what was not hidden.
	TransferExposed = Desc{Name: "yardmaster_transfer_exposed_seconds", Type: HistogramType, Labels: []string{"transport"}, Buckets: secondsFine, Help: "From the end of prefill to the commit: transfer time not hidden behind compute."}
	// Transfers counts transfers by outcome: committed, or why they were not.
	Transfers = Desc{Name: "yardmaster_transfers_total", Type: CounterType, Labels: []string{"transport", "outcome"}, Help: "Finished transfers by outcome."}
	// TransferRejects counts frames refused by reason (checksum, generation, epoch, bounds, coverage, unknown).
	TransferRejects = Desc{Name: "yardmaster_transfer_rejected_frames_total", Type: CounterType, Labels: []string{"reason"}, Help: "KV frames refused by reason."}
	// TransferQuarantined is pages of failed transfers that a write may still read.
	TransferQuarantined = Desc{Name: "yardmaster_transfer_quarantined_bytes", Type: GaugeType, Help: "KV bytes of failed transfers held until nothing reads them. It returns to zero."}
	// Recomputes counts decode legs that computed the prompt themselves.
	Recomputes = Desc{Name: "yardmaster_recomputes_total", Type: CounterType, Labels: []string{"reason"}, Help: "Prompts recomputed on the decode worker because a transfer failed."}
)

// Gateway: what it guesses of the caches of engines that publish no KV events.
var (
	// PrefixPredicted counts prompt tokens that a worker was believed to hold, of
	// requests whose engine then said how many it held.
	PrefixPredicted = Desc{Name: "yardmaster_prefix_predicted_tokens_total", Type: CounterType, Labels: []string{"worker"}, MaxSeries: named, Help: "Prompt tokens predicted to be in the prefix cache of an engine that publishes no events, of requests for which it reports cached tokens."}
	// PrefixReported counts what they then reported, for the same requests.
	PrefixReported = Desc{Name: "yardmaster_prefix_reported_tokens_total", Type: CounterType, Labels: []string{"worker"}, MaxSeries: named, Help: "Cached prompt tokens reported by an engine that publishes no events."}
	// PrefixTrust is the share of recent predictions that came true.
	PrefixTrust = Desc{Name: "yardmaster_prefix_prediction_trust_ratio", Type: GaugeType, Labels: []string{"worker"}, MaxSeries: named, Help: "Share of the recently predicted cached tokens that the engine reported."}
	// PrefixDegraded is 1 while predictions for a worker are mostly wrong.
	PrefixDegraded = Desc{Name: "yardmaster_prefix_prediction_degraded", Type: GaugeType, Labels: []string{"worker"}, MaxSeries: named, Help: "1 while predicted and reported cached tokens of the worker part."}
)

// Prefix index, at a planner or gateway.
var (
	// PrefixBlocks counts distinct blocks in the index.
	PrefixBlocks = Desc{Name: "yardmaster_prefix_index_blocks", Type: GaugeType, Help: "Distinct KV blocks in the prefix index."}
	// PrefixPairs counts what workers hold: a block that two hold counts twice.
	PrefixPairs = Desc{Name: "yardmaster_prefix_index_holders", Type: GaugeType, Help: "Pairs of a KV block and a worker that holds it."}
	// PrefixBytes is the memory the index really uses.
	PrefixBytes = Desc{Name: "yardmaster_prefix_index_bytes", Type: GaugeType, Help: "Memory used by the prefix index."}
	// PrefixForgotten counts pairs given up for the byte budget.
	PrefixForgotten = Desc{Name: "yardmaster_prefix_index_forgotten_total", Type: CounterType, Help: "Pairs of block and worker forgotten to stay within the byte budget."}
	// PrefixWorkers counts workers whose KV events are followed, by state: exact, or
	// degraded while events are missing.
	PrefixWorkers = Desc{Name: "yardmaster_prefix_workers", Type: GaugeType, Labels: []string{"state"}, Help: "Workers whose KV events are followed; degraded ones lack some."}
	// PrefixFrames counts frames of KV events by outcome: applied, old, gap,
	// mismatch, unattached, no_room, inexact.
	PrefixFrames = Desc{Name: "yardmaster_prefix_frames_total", Type: CounterType, Labels: []string{"outcome"}, Help: "Frames of KV events by what became of them."}
)

// Prefix feed, at a worker.
var (
	// FeedBlocks counts the blocks that the engine is believed to hold.
	FeedBlocks = Desc{Name: "yardmaster_feed_blocks", Type: GaugeType, Help: "KV blocks that the engine's events say it holds."}
	// FeedFrames counts frames sent to the planner, repairs included.
	FeedFrames = Desc{Name: "yardmaster_feed_frames_total", Type: CounterType, Help: "Frames of KV events sent to the planner."}
	// FeedRepairs counts the times that the planner was told anew what the engine
	// holds.
	FeedRepairs = Desc{Name: "yardmaster_feed_repairs_total", Type: CounterType, Help: "Times the planner was told anew what the engine holds."}
	// FeedRefused counts blocks that are not followed because of a bound.
	FeedRefused = Desc{Name: "yardmaster_feed_refused_blocks_total", Type: CounterType, Help: "Stored KV blocks that are not followed, because too many are already or wait for their parent."}
	// FeedGaps counts losses of the engine's events by how they ended: replayed,
	// cleared.
	FeedGaps = Desc{Name: "yardmaster_feed_gaps_total", Type: CounterType, Labels: []string{"outcome"}, Help: "Times that events of the engine were missing, by how it ended."}
)

// Gateway: how prompts get their identity.
var (
	// PromptText counts the text that became an identity, by how: cached tokens,
	// encoded anew, or hashed as bytes because its tokens are not known.
	PromptText = Desc{Name: "yardmaster_prompt_text_bytes_total", Type: CounterType, Labels: []string{"how"}, Help: "Prompt text by how it got its identity: tokens from the cache (cached), encoded anew (encoded), hashed as bytes (bytes)."}
	// PromptCacheBytes is the memory of the cache of tokenised text.
	PromptCacheBytes = Desc{Name: "yardmaster_prompt_cache_bytes", Type: GaugeType, Help: "Memory of the cache of tokenised text."}
)

// Load hub: what gateways tell each other of their requests in flight.
var (
	// HubAge is the age of what this gateway knows of the others. Beyond a second
	// it is forgotten.
	HubAge = Desc{Name: "yardmaster_hub_age_seconds", Type: GaugeType, Help: "Time since the leader last said what the other gateways have in flight; after a second that is forgotten."}
	// HubGateways is the gateways whose load is added up: at the leader, and as it
	// tells the others; 0 where nothing is known.
	HubGateways = Desc{Name: "yardmaster_hub_gateways", Type: GaugeType, Help: "Gateways whose load is added up; 0 while this one knows only its own."}
	// HubMessages counts messages by end (gateway, leader) and direction (sent,
	// received).
	HubMessages = Desc{Name: "yardmaster_hub_messages_total", Type: CounterType, Labels: []string{"end", "direction"}, Help: "Messages of the load hub by end and direction."}
	// HubConnects counts this gateway's connections to leaders by outcome: joined,
	// or failed before the leader said anything.
	HubConnects = Desc{Name: "yardmaster_hub_connects_total", Type: CounterType, Labels: []string{"outcome"}, Help: "Connections of this gateway to leaders' load hubs: joined, failed."}
	// HubCuts counts streams that an end cut, by end and reason: silent, stalled,
	// malformed, replaced, too_many, identity, not_leader.
	HubCuts = Desc{Name: "yardmaster_hub_cuts_total", Type: CounterType, Labels: []string{"end", "reason"}, Help: "Streams of the load hub that were cut, by the end that did and why."}
)

// Policies: what was uploaded and bound. A policy is named name@version, or by its
// name alone where it is built in.
var (
	// PolicyDecisions counts decisions made under a policy's name by stage: active,
	// canary.
	PolicyDecisions = Desc{Name: "yardmaster_policy_decisions_total", Type: CounterType, Labels: []string{"kind", "policy", "stage"}, MaxSeries: named, Help: "Decisions by policy and version, and by the stage in which it decided: active or canary."}
	// PolicyRequests counts finished requests by the policy that placed them, the stage
	// in which it did, and the outcome as in Requests.
	PolicyRequests = Desc{Name: "yardmaster_policy_requests_total", Type: CounterType, Labels: []string{"policy", "stage", "outcome"}, MaxSeries: named, Help: "Finished requests by the router that placed them, its stage (active or canary) and the outcome, to compare a canary with what is active."}
	// PolicyFirst is TTFT by the policy that placed the request, and its stage.
	PolicyFirst = Desc{Name: "yardmaster_policy_time_to_first_token_seconds", Type: HistogramType, Labels: []string{"policy", "stage"}, Buckets: secondsCoarse, Help: "From accepting a request to its first token, by the router that placed it and its stage (active or canary)."}
	// PolicyFaults counts calls without an answer by fault: busy, fuel, trap, refused,
	// rows, scores, quarantined.
	PolicyFaults = Desc{Name: "yardmaster_policy_faults_total", Type: CounterType, Labels: []string{"policy", "fault"}, MaxSeries: named, Help: "Calls of a policy that gave no answer, so that a native policy decided."}
	// PolicyShadow counts what shadows found by result: agree, disagree, skipped.
	PolicyShadow = Desc{Name: "yardmaster_policy_shadow_total", Type: CounterType, Labels: []string{"policy", "result"}, MaxSeries: named, Help: "Decisions that a shadow policy was compared with, by result; skipped were not scored, to bound the time."}
	// PolicyBound is 1 for each policy that this node serves with.
	PolicyBound = Desc{Name: "yardmaster_policy_bound_info", Type: GaugeType, Labels: []string{"kind", "model", "stage", "policy"}, MaxSeries: named, Help: "1 for each policy that this node decides with, by stage; an empty model is all models."}
	// PolicyIndex is the log index of the bindings that this node decides by.
	PolicyIndex = Desc{Name: "yardmaster_policy_binding_index", Type: GaugeType, Help: "Log index of the bindings that this node decides by."}
	// PolicyUnready counts bindings that this node does not follow yet, and versions
	// that it has not prepared.
	PolicyUnready = Desc{Name: "yardmaster_policy_unready", Type: GaugeType, Labels: []string{"what"}, Help: "Bindings that this node does not follow yet, and versions that are not prepared."}
	// PolicySwap is from learning of a binding to deciding by it.
	PolicySwap = Desc{Name: "yardmaster_policy_swap_seconds", Type: HistogramType, Buckets: secondsFine, Help: "From learning of a changed binding to deciding by it."}
	// PolicyPrepare is the time to fetch, check and compile a version.
	PolicyPrepare = Desc{Name: "yardmaster_policy_prepare_seconds", Type: HistogramType, Buckets: secondsFine, Help: "Time to fetch, check and compile a version of a policy."}
	// PolicyInstances counts instances by state: live, lost (not replaced after a
	// fault).
	PolicyInstances = Desc{Name: "yardmaster_policy_instances", Type: GaugeType, Labels: []string{"state"}, Help: "Instances of policies: live, and lost because they could not be replaced after a fault."}
	// PolicyLines counts log lines of policies by fate: logged, dropped.
	PolicyLines = Desc{Name: "yardmaster_policy_log_lines_total", Type: CounterType, Labels: []string{"policy", "fate"}, MaxSeries: named, Help: "Lines that policies logged, and that were dropped because they were too many."}
	// PolicyWrites counts writes of policies to the cluster's state by fate:
	// committed, lost, refused.
	PolicyWrites = Desc{Name: "yardmaster_policy_state_writes_total", Type: CounterType, Labels: []string{"policy", "fate"}, MaxSeries: named, Help: "Writes of policies to the cluster's state: committed, lost in a failed batch, or refused."}
	// PolicyOutcomes counts outcomes of requests by fate: observed, lost.
	PolicyOutcomes = Desc{Name: "yardmaster_policy_outcomes_total", Type: CounterType, Labels: []string{"fate"}, Help: "Outcomes of requests that observers were shown, and that were lost because they came too fast."}
	// PolicyCounter is what policies count themselves, by stage: deciding (active or
	// canary), shadow.
	PolicyCounter = Desc{Name: "yardmaster_policy_counter_total", Type: CounterType, Labels: []string{"policy", "counter", "stage"}, MaxSeries: named, Help: "Counters that policies declare in their manifests, apart for what decides and what is a shadow."}
)

// Scaling: how many workers pools are to have, and do.
var (
	// ScaleDesired is the plan in force.
	ScaleDesired = Desc{Name: "yardmaster_scale_desired_replicas", Type: GaugeType, Labels: []string{"model", "role"}, MaxSeries: named, Help: "Workers that the plan wants in a pool."}
	// ScaleActual is the pool as it is, by state: ready, draining.
	ScaleActual = Desc{Name: "yardmaster_scale_replicas", Type: GaugeType, Labels: []string{"model", "role", "state"}, MaxSeries: named, Help: "Workers that a pool of the plan has, by state."}
	// ScaleTicks counts the leader's looks at the pools by outcome: asked, late (the
	// policy did not answer in time).
	ScaleTicks = Desc{Name: "yardmaster_scale_ticks_total", Type: CounterType, Labels: []string{"outcome"}, Help: "Times that the leader asked the autoscaling policy, and that it did not answer in time."}
	// ScalePlans counts changes of the plan that this leader wanted by outcome:
	// committed, conflict, refused, failed.
	ScalePlans = Desc{Name: "yardmaster_scale_plans_total", Type: CounterType, Labels: []string{"outcome"}, Help: "Changes of the plan that this leader proposed, by outcome."}
	// ScaleProcesses is worker processes that this process started, by state:
	// starting, serving, draining. It returns to zero.
	ScaleProcesses = Desc{Name: "yardmaster_scale_processes", Type: GaugeType, Labels: []string{"state"}, Help: "Worker processes that this process has started, by state."}
	// ScaleStarts counts worker processes by what was done: started, restarted,
	// gave_up (it cannot start as it was told), stopped, killed.
	ScaleStarts = Desc{Name: "yardmaster_scale_process_events_total", Type: CounterType, Labels: []string{"event"}, Help: "Worker processes that were started, restarted after they had ended by themselves, given up, stopped, and killed because they did not end in time."}
)

// PolicyHistogram is the family of a histogram that a policy declares, whose buckets
// are its own. name is made of letters, digits and underscores.
func PolicyHistogram(name string, buckets []float64) Desc {
	return Desc{Name: "yardmaster_policy_value_" + name, Type: HistogramType, Labels: []string{"policy", "stage"}, Buckets: buckets, Help: "A histogram that policies declare in their manifests, apart for what decides and what is a shadow."}
}
