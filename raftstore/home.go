package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// home is how a node comes into a cluster.
type home struct {
	waits atomic.Pointer[string] // for what
	// joined is set once the node has seen itself in the configuration, in the
	// role it wants. From then on operators decide about its role.
	joined  atomic.Bool
	leaving atomic.Bool

	stranded atomic.Pointer[stranding]
	entering chan struct{} // holds one value while somebody establishes this node

	mu      sync.Mutex
	promise promise
	foreign map[string]bool // addresses of other clusters that were complained of
}

func newHome() home {
	return home{entering: make(chan struct{}, 1), foreign: map[string]bool{}}
}

// isNews reports that nobody has complained yet that another cluster is at addr.
// Of very many addresses nobody does.
func (h *home) isNews(addr string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.foreign[addr] || len(h.foreign) >= maxHints {
		return false
	}
	h.foreign[addr] = true
	return true
}

// stranding is that only another cluster answers.
type stranding struct {
	since time.Time
	why   error
}

// strand notes who answered a round of greetings: nodes of another cluster, of
// this one's, or nobody, which changes nothing.
func (h *home) strand(foreign error, ours bool) {
	switch {
	case ours:
		h.stranded.Store(nil)
	case foreign != nil && h.stranded.Load() == nil:
		h.stranded.Store(&stranding{time.Now(), foreign})
	}
}

// promise is the founding that this node has agreed to.
type promise struct {
	clusterID string
	founders  []group.Server
	until     time.Time
}

// promiseTime is how long a promise binds. A founding takes two rounds; one that
// takes longer is begun anew.
const promiseTime = 10 * time.Second

func (h *home) waitsFor() string {
	if w := h.waits.Load(); w != nil {
		return *w
	}
	return "starting"
}

// waitFor notes what the node waits for, and reports whether that is news.
func (h *home) waitFor(format string, args ...any) (news bool) {
	now := fmt.Sprintf(format, args...)
	before := h.waits.Swap(&now)
	return before == nil || *before != now
}

// comeHome starts a node that knows its cluster. It looks first whether another
// one runs under its id, or its peers are of another cluster.
func (s *Store) comeHome(ctx context.Context) error {
	ours, foreign := false, error(nil)
	for _, a := range s.round(ctx, s.peers(s.savedPeers())) {
		switch {
		case errors.Is(a.err, ErrIDInUse), errors.Is(a.err, ErrRecovered):
			return a.err
		case errors.Is(a.err, ErrOtherCluster):
			foreign = a.err
		case a.err == nil && a.resp.GetNode().GetClusterId() == s.ClusterID():
			ours = true
		}
	}
	if foreign != nil && !ours {
		return foreign
	}
	return s.openGroups(ctx, s.id.Load().Founders)
}

// findHome founds or joins a cluster, or ends with a fault.
func (s *Store) findHome() {
	cluster := cmp.Or(s.cfg.ClusterID, newClusterID()) // if this node is to name it
	hints := map[string]string{}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, s.pace.hello) {
		answers := s.round(s.ctx, s.peers(hints))
		hints = s.hear(answers)
		err := s.enter(answers, cluster)
		if err != nil && s.ctx.Err() == nil && s.home.waitFor("%v", err) {
			s.log.Info("not in a cluster yet", "reason", err)
		}
		if s.groups.Load() != nil {
			return
		}
		// Chance keeps nodes from asking one another in step for ever.
		if !s.sleep(s.ctx, pause/2+rand.N(pause)) {
			return
		}
	}
}

// enter tries to get into the cluster that the answers tell of, or to found one.
// An error says what is missing.
func (s *Store) enter(answers []answer, cluster string) error {
	clusters := map[string]bool{}
	var established, fresh []*peer.Node
	var past []recovered
	for _, a := range answers {
		past = remember(past, ended(a.resp.GetNode())...)
	}
	others := false // somebody else is to be joined, whether it answers or not
	for _, a := range answers {
		n := a.resp.GetNode()
		self := n.GetId() == s.cfg.NodeID
		others = others || !self
		switch {
		case a.err != nil || self:
		case isAmong(past, n.GetClusterId()):
			// It stops as soon as it hears of the recovery.
		case n.GetClusterId() != "":
			clusters[n.GetClusterId()] = true
			established = append(established, n)
		case n.GetVoter():
			fresh = append(fresh, n)
		}
	}
	switch {
	case len(clusters) > 1:
		return fmt.Errorf("%w: the addresses to join are of %d clusters", ErrOtherCluster, len(clusters))
	case len(clusters) == 1:
		return s.join(established)
	case s.cfg.Nonvoter:
		return fmt.Errorf("waiting for a planner that answers: a gateway that starts knows no workers before one has%s", silences(answers))
	}
	err := s.foundTogether(fresh, others, cluster)
	if err != nil {
		err = fmt.Errorf("%w%s", err, silences(answers))
	}
	return err
}

// maxSilences is how many nodes that do not answer are told of.
const maxSilences = 3

// silences says why nodes did not answer: a wrong address or secret is the
// likeliest reason to wait for long.
func silences(answers []answer) string {
	var said []string
	for _, a := range answers {
		if a.err != nil && len(said) < maxSilences {
			text := strings.TrimPrefix(a.err.Error(), peer.ErrUnreachable.Error()+": ")
			if !slices.Contains(said, text) {
				said = append(said, text)
			}
		}
	}
	if len(said) == 0 {
		return ""
	}
	slices.Sort(said)
	return ": " + strings.Join(said, "; ")
}

// foundTogether founds a cluster when all founders are there and this node is
// the first of them by name. The others wait to be asked. A node that is to found
// one alone does not if there are others to join.
func (s *Store) foundTogether(fresh []*peer.Node, others bool, cluster string) error {
	expect := max(s.cfg.BootstrapExpect, 1)
	if expect == 1 {
		switch {
		case others:
			return errors.New("waiting for a cluster to join, since with --join and --bootstrap-expect 1 a planner founds none")
		case len(s.cfg.Join) > 0:
			return errors.New("--join names only this planner: name another, or start it without --join to found a cluster alone")
		}
		return s.establish(s.ctx, cluster, []group.Server{{ID: s.cfg.NodeID, Addr: s.cfg.Advertise}})
	}
	all := []group.Server{{ID: s.cfg.NodeID, Addr: s.cfg.Advertise}}
	for _, n := range fresh {
		if n.GetExpect() != uint32(expect) {
			return fmt.Errorf("waiting: %s was started with --bootstrap-expect %d, this planner with %d; start all founders with the same",
				n.GetId(), max(n.GetExpect(), 1), expect)
		}
		all = append(all, group.Server{ID: n.GetId(), Addr: n.GetAddr()})
	}
	slices.SortFunc(all, func(a, b group.Server) int { return compare(a.ID, b.ID) })
	all = slices.CompactFunc(all, func(a, b group.Server) bool { return a.ID == b.ID })
	if len(all) < expect {
		return fmt.Errorf("waiting for founders: %d of %d (--bootstrap-expect) are here: %s", len(all), expect, names(all))
	}
	founders := all[:expect]
	if founders[0].ID != s.cfg.NodeID {
		return fmt.Errorf("waiting for %s to found the cluster", founders[0].ID)
	}
	return s.lead(cluster, founders)
}

func names(list []group.Server) string {
	var out []string
	for _, f := range list {
		out = append(out, f.ID)
	}
	return strings.Join(out, ", ")
}

// lead founds the cluster: all promise, then all go. One who does not promise
// stops it; one who is missed by the go finds the others by greeting them.
func (s *Store) lead(cluster string, founders []group.Server) error {
	if err := s.agree(cluster, founders); err != nil {
		return err
	}
	for _, goes := range []bool{false, true} {
		if goes {
			if err := s.establish(s.ctx, cluster, founders); err != nil {
				return err
			}
		}
		if err := s.askFounders(cluster, founders, goes); err != nil && !goes {
			return err
		}
	}
	return nil
}

func (s *Store) askFounders(cluster string, founders []group.Server, goes bool) error {
	req := &peer.FoundRequest{ClusterId: cluster, Go: goes}
	for _, f := range founders {
		req.Founders = append(req.Founders, &peer.Founder{Id: f.ID, Addr: f.Addr})
	}
	errs := make([]error, len(founders))
	var all sync.WaitGroup
	for i, f := range founders {
		if f.ID == s.cfg.NodeID {
			continue
		}
		all.Go(func() { errs[i] = s.askFounder(f, req) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (s *Store) askFounder(f group.Server, req *peer.FoundRequest) error {
	ctx, cancel := context.WithTimeout(s.ctx, promiseTime/4)
	defer cancel()
	client, err := s.net.pool.Client(ctx, f.ID, f.Addr)
	if err != nil {
		return err
	}
	resp, err := client.Found(ctx, req)
	if err == nil && !resp.GetAgreed() {
		err = errors.New(resp.GetReason())
	}
	if err != nil {
		return fmt.Errorf("waiting for %s to agree: %w", f.ID, err)
	}
	return nil
}

// agree promises to found this cluster and, for a while, no other.
func (s *Store) agree(cluster string, founders []group.Server) error {
	self := group.Server{ID: s.cfg.NodeID, Addr: s.cfg.Advertise}
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	p := &s.home.promise
	same := p.clusterID == cluster && slices.Equal(p.founders, founders)
	switch {
	case s.ClusterID() != "":
		return fmt.Errorf("%s is in a cluster already", s.cfg.NodeID)
	case s.cfg.Nonvoter || !slices.Contains(founders, self) || len(founders) != max(s.cfg.BootstrapExpect, 1):
		return fmt.Errorf("%s is not to found a cluster of %s", s.cfg.NodeID, names(founders))
	case s.cfg.ClusterID != "" && s.cfg.ClusterID != cluster:
		return fmt.Errorf("%s is to be of cluster %s", s.cfg.NodeID, s.cfg.ClusterID)
	case !same && time.Now().Before(p.until):
		return fmt.Errorf("%s has agreed to another founding", s.cfg.NodeID)
	}
	*p = promise{cluster, founders, time.Now().Add(promiseTime)}
	return nil
}

// establish makes this node one of the cluster, as a founder if founders are
// given. It is nil when it is one already. ctx bounds the wait for another attempt;
// what has begun goes on.
func (s *Store) establish(ctx context.Context, cluster string, founders []group.Server) error {
	select {
	case s.home.entering <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s is about to enter a cluster: %w", s.cfg.NodeID, ctx.Err())
	}
	defer func() { <-s.home.entering }()
	if s.groups.Load() != nil {
		if s.ClusterID() != cluster {
			return fmt.Errorf("%w: this node is of %s", ErrOtherCluster, s.ClusterID())
		}
		return nil
	}
	if s.cfg.ClusterID != "" && s.cfg.ClusterID != cluster {
		return fmt.Errorf("%w: the cluster is %s, this node is to be of %s", ErrOtherCluster, cluster, s.cfg.ClusterID)
	}
	if err := s.settle(cluster, founders); err != nil {
		s.trip(err)
		return err
	}
	s.home.waitFor("waiting for a leader")
	if err := s.openGroups(s.ctx, founders); err != nil { //nolint:contextcheck // what has begun goes on
		s.trip(err)
		return err
	}
	if len(founders) > 0 {
		s.log.Info("founded a cluster", "cluster", cluster, "node", s.cfg.NodeID, "founders", names(founders))
	} else {
		s.log.Info("joined a cluster", "cluster", cluster, "node", s.cfg.NodeID)
	}
	return nil
}

// join asks one of the cluster's nodes after the other to let this one in.
func (s *Store) join(nodes []*peer.Node) error {
	if id := nodes[0].GetClusterId(); s.promised(id) != nil {
		// The others were told to go and this node was missed.
		return s.establish(s.ctx, id, s.promised(id))
	}
	var why error
	for _, n := range nodes {
		resp, err := s.askToEnter(n)
		switch {
		case err != nil:
			why = errors.Join(why, err)
		case resp.GetVerdict() == peer.Verdict_VERDICT_DONE:
			return s.establish(s.ctx, resp.GetClusterId(), nil)
		case resp.GetVerdict() == peer.Verdict_VERDICT_REFUSED:
			return fmt.Errorf("%s does not let this node in: %s", n.GetId(), resp.GetDetail())
		default:
			why = errors.Join(why, fmt.Errorf("%s: %s", n.GetId(), resp.GetDetail()))
		}
	}
	return fmt.Errorf("waiting for the leader to let this node in: %w", why)
}

// askToEnter asks one node to let this one in.
func (s *Store) askToEnter(n *peer.Node) (*peer.ChangeResponse, error) {
	ctx, cancel := context.WithTimeout(s.ctx, changeTime)
	defer cancel()
	return s.askChange(ctx, n.GetId(), n.GetAddr(), &peer.ChangeRequest{
		Group: peer.Group_GROUP_CORE, Change: &peer.ChangeRequest_Admit{Admit: s.asMember()},
	})
}

// promised is the founders of the cluster, if this node has agreed to found it.
func (s *Store) promised(cluster string) []group.Server {
	s.home.mu.Lock()
	defer s.home.mu.Unlock()
	if s.home.promise.clusterID != cluster {
		return nil
	}
	return s.home.promise.founders
}

func (s *Store) asMember() *peer.Member {
	return &peer.Member{Id: s.cfg.NodeID, Addr: s.cfg.Advertise, Voter: !s.cfg.Nonvoter}
}

func compare(a, b string) int { return strings.Compare(a, b) }
