package assemble

import (
	"fmt"
	"strings"

	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/server/admin"
)

// statusOf is a cluster's status as the admin API tells it. atLeast is how many
// planners the autopilot's settings ask for.
func statusOf(s *raftstore.ClusterStatus, atLeast int) admin.ClusterStatus {
	out := admin.ClusterStatus{
		ClusterID: s.ClusterID, Node: s.Node, Leader: s.Leader, PrefixLeader: s.PrefixLeader, FeatureLevel: s.Level,
		Healthy: s.Healthy, Tolerates: s.CanLose, Members: []admin.Member{},
	}
	newest := newestOf(s)
	for i := range s.Members {
		out.Members = append(out.Members, memberOf(&s.Members[i], s.Leader, newest))
	}
	out.Problems, out.Hints = problemsOf(s, out.Members, atLeast)
	out.Healthy = out.Healthy && len(out.Problems) == 0
	return out
}

// ends are the last committed entries of the two groups that anybody knows.
type ends struct{ core, prefix uint64 }

func newestOf(s *raftstore.ClusterStatus) (e ends) {
	for i := range s.Members {
		e.core = max(e.core, s.Members[i].Node.Core.Commit)
		e.prefix = max(e.prefix, s.Members[i].Node.Prefix.Commit)
	}
	return e
}

func memberOf(m *raftstore.MemberStatus, leader string, newest ends) admin.Member {
	n := &m.Node
	out := admin.Member{
		ID: m.ID, Planner: m.Voter || n.Voter, Voter: m.Voter, Leader: m.ID == leader, Address: m.Addr, Admin: n.AdminAddr, Version: n.Version, MaxLevel: n.MaxLevel,
		Reached: m.Answered, Healthy: m.Healthy && n.NotReady == "" && n.Fault == "", NotReady: n.NotReady,
	}
	for _, why := range []string{m.Error, n.Fault, n.NotReady, m.Reason} {
		if why != "" {
			out.Problems = append(out.Problems, Plain(why))
			break // the first explains the others
		}
	}
	if m.Answered {
		out.LastContactMS = n.Core.Contact.Milliseconds()
		out.DiskSyncUS = n.SyncMedian.Microseconds()
		out.Core, out.Prefix = groupOf(&n.Core, newest.core), groupOf(&n.Prefix, newest.prefix)
	}
	return out
}

func groupOf(g *raftstore.GroupStatus, newest uint64) *admin.GroupStatus {
	out := &admin.GroupStatus{State: g.State, Term: g.Term, Committed: g.Commit, Applied: g.Applied, Last: g.Last}
	if newest > g.Applied {
		out.Lag = newest - g.Applied
	}
	return out
}

// problemsOf is what is wrong with the whole, and what could be better. atLeast is
// how many planners there are to be, unless fewer founded the cluster.
func problemsOf(s *raftstore.ClusterStatus, members []admin.Member, atLeast int) (out, hints []string) {
	if s.ClusterID == "" {
		return nil, nil // whoever is asked says what it waits for
	}
	if s.Leader == "" {
		out = append(out, "there is no leader: requests are served, changes wait")
	} else if s.PrefixLeader == "" {
		out = append(out, "the prefix group has no leader: what workers newly hold is not learned")
	}
	unwell := 0
	founders := 0
	for i := range members {
		m := &members[i]
		founders = max(founders, s.Members[i].Node.Founders)
		// Without a leader nobody judges; who answers may be well.
		switch {
		case m.Healthy || s.Leader == "" && m.Reached:
		case m.Voter:
			unwell++
		default:
			out = append(out, fmt.Sprintf("%s, which does not vote, is unwell: %s", m.ID, strings.Join(m.Problems, "; ")))
		}
	}
	switch {
	case unwell > 0 && s.Leader != "" && s.Voters > 1 && s.CanLose == 0:
		out = append(out, fmt.Sprintf("%d of %d planners unwell: the loss of one more stops changes", unwell, s.Voters))
	case unwell > 0:
		out = append(out, fmt.Sprintf("%d of %d planners unwell", unwell, s.Voters))
	}
	if wanted := min(founders, atLeast); s.Leader != "" && s.Voters < wanted {
		out = append(out, fmt.Sprintf("%d of %d planners: start others with --join, or say that these are enough with `yardmaster cluster autopilot set --min-voters %d`",
			s.Voters, founders, s.Voters))
	} else if s.Voters > 0 && s.Voters%2 == 0 {
		hints = append(hints, fmt.Sprintf("%d planners survive no more failures than %d would: add one or remove one", s.Voters, s.Voters-1))
	}
	return append(out, differences(s)...), hints
}

// differences compares the digests that nodes took at the same index. Equal logs
// make equal states: a difference means a damaged node, or a fault of this program.
func differences(s *raftstore.ClusterStatus) (out []string) {
	for _, group := range []struct {
		name string
		of   func(*raftstore.NodeStatus) []raftstore.Sample
	}{
		{"core", func(n *raftstore.NodeStatus) []raftstore.Sample { return n.Core.Samples }},
		{"prefix", func(n *raftstore.NodeStatus) []raftstore.Sample { return n.Prefix.Samples }},
	} {
		type first struct{ digest, node string }
		seen := map[uint64]first{}
		for i := range s.Members {
			m := &s.Members[i]
			for _, sample := range group.of(&m.Node) {
				before, ok := seen[sample.Index]
				if !ok {
					seen[sample.Index] = first{sample.Digest, m.ID}
				} else if before.digest != sample.Digest {
					out = append(out, fmt.Sprintf("the states of group %s differ at index %d between %s and %s", group.name, sample.Index, before.node, m.ID))
					break // what follows differs too
				}
			}
		}
	}
	return out
}
