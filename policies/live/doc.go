// Package live keeps a node's policies in step with what the cluster has bound.
//
// A [Node] follows a [Cluster]'s rollout.Table in one goroutine. A version is
// prepared as soon as it is uploaded: its bytes fetched, compiled by package vet's
// child, loaded. When a binding changes and everything that it names is ready, one
// atomic pointer is swapped; until then the node goes on by the binding before, and
// says so ([Node.Ready], [Node.News], metrics). A set that was replaced is closed
// when the last decision that took it has ended: it is counted, never guessed.
//
// The node is a [route.Chooser]: for each decision it names active or canary, by the
// session, under the log index at which that was bound, and now and then a shadow,
// within a share of time. Routers of one stage are added up as [route.Blend] does, in
// the order of the stage:
//
//	cost = Σ weight_i · (c_i − min c_i) / (max c_i − min c_i)
//
// where a candidate that one part finds ineligible is out. When a part has no answer
// the fallback decides, in the same call. Five faults of a version within 30 s take
// it out of service on this node at once, and are proposed to the cluster.
//
// It also runs observers ([Node.Observe]), gives guests their services (log lines,
// counters, the node's state and the cluster's), and lends out admission policies and
// autoscalers. What may be bound is core/rollout's to say, what an upload must be
// package vet's; a guest is run by package host.
package live
