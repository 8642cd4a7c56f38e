// Package nemesis tests whole clusters while everything goes wrong: planners
// and gateways in one process, with real logs on disk and real ports, over a
// network of package faultnet and disks that hang and fail on command.
//
// It has no code of its own, only tests. A run is told by a seed, which it
// prints: YARDMASTER_SEED=n go test -run Nemesis runs it again. What the seed
// decides is who does what to whom and for how long; what goroutines do in between
// it cannot.
// YARDMASTER_SIM=1 makes the runs long, as make sim does.
//
// During a run clients read, write and swap registers and take grants of quotas
// on nodes by chance, and model workers tell of caches that they hold. After
// it all is healed, and the run is judged:
//
//   - what clients were told is linearizable (package history),
//   - no term had two leaders,
//   - digests of the same index were equal, all along, and all states are at the
//     end, on every node,
//   - the index of every node is what the workers' caches hold, no more, no less.
//
// Nodes end without a word here, but within their process. Real processes are
// killed by the system's tests.
package nemesis
