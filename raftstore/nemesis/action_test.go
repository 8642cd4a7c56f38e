package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/yardmaster/yardmaster/raftstore"
	"github.com/yardmaster/yardmaster/raftstore/transport/faultnet"
)

// nemesis does one thing after the other to a cluster.
type nemesis struct {
	yard *yard
	rng  *rand.Rand
	long bool // holds states longer
	say  func(string, ...any)
	acks func() uint64 // what clients were told is done
}

// action is something that happens to a cluster and is over when it returns.
// Nodes may still be away then, and the network broken.
type action struct {
	name string
	do   func(*nemesis, context.Context)
}

var actions = []action{
	{"kill a planner", func(n *nemesis, ctx context.Context) { n.away(ctx, (*node).kill, n.some(1)...) }},
	{"kill the leader", func(n *nemesis, ctx context.Context) { n.away(ctx, (*node).kill, n.leader()) }},
	{"kill a majority", func(n *nemesis, ctx context.Context) {
		n.away(ctx, (*node).kill, n.some(len(n.yard.planners())/2+1)...)
	}},
	{"kill all planners", func(n *nemesis, ctx context.Context) { n.away(ctx, (*node).kill, n.yard.planners()...) }},
	{"stop the leader", func(n *nemesis, ctx context.Context) { n.away(ctx, (*node).stop, n.leader()) }},
	{"break the network", (*nemesis).breakNet},
	{"isolate the leader", (*nemesis).isolate},
	{"the leader is not heard", (*nemesis).deaf},
	{"the leader hears nobody", (*nemesis).mute},
	{"pause the leader", func(n *nemesis, ctx context.Context) { n.freeze(ctx, n.leader()) }},
	{"pause a planner", func(n *nemesis, ctx context.Context) { n.freeze(ctx, n.some(1)[0]) }},
	{"a disk fails", func(n *nemesis, ctx context.Context) { n.sicken(ctx, n.some(1)[0]) }},
	{"the leader's disk fails", func(n *nemesis, ctx context.Context) { n.sicken(ctx, n.leader()) }},
	{"a disk is slow", (*nemesis).slowDisk},
	{"hand over", (*nemesis).transfer},
	{"miss the log", (*nemesis).truncate},
	{"grow and shrink", (*nemesis).members},
	{"replace a gateway", (*nemesis).churn},
}

// act draws an action and does it, and heals what it broke.
func (n *nemesis) act(ctx context.Context, a action) {
	n.say("%s", a.name)
	a.do(n, ctx)
	n.heal(ctx)
	n.works(ctx)
}

// works waits until clients get on: a cluster that is healed does not stay as it
// was.
func (n *nemesis) works(ctx context.Context) {
	begin, before := time.Now(), n.acks()
	if !until(ctx, patience, func() bool { return n.acks() > before+2*clientCount }) && ctx.Err() == nil {
		n.yard.t.Errorf("clients do not get on within %v of the network, disks and nodes being healed", patience)
	}
	if took := time.Since(begin); took > 5*time.Second {
		n.say("  clients got on after %v", took.Round(time.Millisecond))
	}
}

// while is how long a state lasts.
func (n *nemesis) while(ctx context.Context) {
	most := 1200
	if n.long {
		most = 3000
	}
	pause(ctx, time.Duration(100+n.rng.IntN(most))*time.Millisecond)
}

func (n *nemesis) some(count int) []*node {
	list := n.yard.planners()
	n.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(count, len(list))]
}

// leader is who leads, or whoever, when nobody does.
func (n *nemesis) leader() *node {
	if l := n.yard.leader(); l != nil {
		return l
	}
	return n.some(1)[0]
}

// away ends nodes and starts them again.
func (n *nemesis) away(ctx context.Context, end func(*node, context.Context), list ...*node) {
	n.say("  %v", names(list))
	for _, victim := range list {
		end(victim, ctx)
	}
	n.while(ctx)
	n.start(ctx, list...)
}

// start starts nodes, which have to come up whatever the network is like.
func (n *nemesis) start(ctx context.Context, list ...*node) {
	n.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, x := range list {
		if err := x.start(ctx); err != nil && ctx.Err() == nil {
			n.yard.t.Errorf("start: %v", err)
		}
	}
}

func (n *nemesis) breakNet(ctx context.Context) {
	for range 1 + n.rng.IntN(3) {
		step := faultnet.Draw(n.rng, names(n.yard.all()))
		n.say("  %s", step.Name)
		n.yard.net.Apply(step)
		n.while(ctx)
	}
}

func (n *nemesis) isolate(ctx context.Context) {
	n.yard.net.Isolate(n.leader().id)
	n.while(ctx)
}

func (n *nemesis) oneWay(ctx context.Context, link func(leader, other string) faultnet.Link) {
	leader := n.leader()
	step := faultnet.Step{Faults: map[faultnet.Link]faultnet.Fault{}}
	for _, other := range n.yard.all() {
		if other != leader {
			step.Faults[link(leader.id, other.id)] = faultnet.Fault{Blackhole: true}
		}
	}
	n.say("  %s", leader.id)
	n.yard.net.Apply(step)
	n.while(ctx)
}

func (n *nemesis) deaf(ctx context.Context) {
	n.oneWay(ctx, func(l, o string) faultnet.Link { return faultnet.Link{From: l, To: o} })
}

func (n *nemesis) mute(ctx context.Context) {
	n.oneWay(ctx, func(l, o string) faultnet.Link { return faultnet.Link{From: o, To: l} })
}

// freeze lets a node stand still: nothing goes in or out, and whoever looks at
// its log waits.
func (n *nemesis) freeze(ctx context.Context, victim *node) {
	n.say("  %s", victim.id)
	n.yard.net.Isolate(victim.id)
	// Writes would count as a hung disk before long, and the node be gone.
	victim.disk.set(trouble{stuck: true})
	pause(ctx, time.Duration(100+n.rng.IntN(350))*time.Millisecond)
	victim.disk.set(trouble{})
	n.while(ctx)
}

// sicken lets a disk fail. The node has to find out, leave alone, and come back
// on a disk that works.
func (n *nemesis) sicken(ctx context.Context, victim *node) {
	s := victim.store.Load()
	if s == nil {
		return
	}
	how := failures[n.rng.IntN(len(failures))]
	n.say("  %s %v", victim.id, how)
	victim.disk.set(how)
	select {
	case <-s.Faulted():
	case <-time.After(10 * time.Second): // without a write nobody notices
	case <-ctx.Done():
	}
	n.while(ctx)
	victim.kill(ctx)
	n.start(ctx, victim)
}

func (n *nemesis) slowDisk(ctx context.Context) {
	victim := n.some(1)[0]
	how := trouble{slow: time.Duration(5+n.rng.IntN(150)) * time.Millisecond}
	n.say("  %s %v", victim.id, how)
	victim.disk.set(how)
	n.while(ctx)
	victim.disk.set(trouble{})
}

func (n *nemesis) transfer(ctx context.Context) {
	s := n.yard.any(n.rng)
	if s == nil {
		return
	}
	to := ""
	if n.rng.IntN(2) == 0 {
		to = n.some(1)[0].id
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := s.Transfer(ctx, to); err != nil {
		n.say("  to %q: %v", to, err) // it may be away; the run is not about that
	}
}

// truncate keeps a planner away until the entries that it has not got are gone
// from the logs of the others, who have snapshots instead.
func (n *nemesis) truncate(ctx context.Context) {
	victim := n.some(1)[0]
	n.say("  %s", victim.id)
	victim.kill(ctx)
	missed := func(s *raftstore.Store) uint64 { return s.Status().Core.Applied }
	var from uint64
	for _, p := range n.yard.planners() {
		if s := p.store.Load(); s != nil {
			from = max(from, missed(s))
		}
	}
	until(ctx, 20*time.Second, func() bool {
		for _, p := range n.yard.planners() {
			if s := p.store.Load(); s != nil && missed(s) > from+2*trailing {
				return true
			}
		}
		return false
	})
	for _, p := range n.yard.planners() {
		if s := p.store.Load(); s != nil {
			try, cancel := context.WithTimeout(ctx, 10*time.Second)
			if err := s.Snapshot(try); err != nil {
				n.say("  snapshot of %s: %v", p.id, err)
			}
			cancel()
		}
	}
	n.start(ctx, victim)
}

// members lets two planners join and two others leave. Who leaves goes for good:
// the next of that name is a new one.
func (n *nemesis) members(ctx context.Context) {
	size := len(n.yard.planners())
	for range 2 {
		fresh := n.yard.planner(n.freeName())
		fresh.cfg.Join = n.yard.addresses()
		n.say("  %s joins", fresh.id)
		n.start(ctx, fresh)
		if !n.see(ctx, fresh.id, true) {
			return
		}
		if n.rng.IntN(3) == 0 {
			step := faultnet.Draw(n.rng, names(n.yard.planners()))
			n.say("  %s", step.Name)
			n.yard.net.Apply(step)
			n.while(ctx)
			n.yard.net.Heal()
		}
	}
	for len(n.yard.planners()) > size && ctx.Err() == nil {
		victim := n.some(1)[0]
		n.say("  %s leaves", victim.id)
		if !n.remove(ctx, victim.id) {
			return
		}
		victim.kill(ctx)
		n.yard.forget(victim)
	}
}

// freeName is one that no planner has at the moment.
func (n *nemesis) freeName() string {
	taken := names(n.yard.all())
	for i := 1; ; i++ {
		if id := fmt.Sprintf("p%d", i); !slices.Contains(taken, id) {
			return id
		}
	}
}

// see waits until the cluster has a member, as a voter or not at all.
func (n *nemesis) see(ctx context.Context, id string, voter bool) bool {
	ok := until(ctx, patience, func() bool {
		s := n.yard.any(n.rng)
		if s == nil {
			return false
		}
		_, members := s.Members()
		i := slices.IndexFunc(members, func(m raftstore.Member) bool { return m.ID == id })
		return voter == (i >= 0 && members[i].Voter)
	})
	if !ok && ctx.Err() == nil {
		n.yard.t.Errorf("%s: a voter should be %v, and is not within %v", id, voter, patience)
	}
	return ok
}

// remove takes a member out, whoever has to be asked how often.
func (n *nemesis) remove(ctx context.Context, id string) bool {
	var err error
	ok := until(ctx, patience, func() bool {
		s := n.yard.any(n.rng)
		if s == nil || s.NodeID() == id {
			return false
		}
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err = s.RemoveMember(try, id)
		return err == nil || errors.Is(err, raftstore.ErrUnknownMember)
	})
	if !ok && ctx.Err() == nil {
		n.yard.t.Errorf("%s was not removed: %v", id, err)
	}
	return ok
}

// churn ends a gateway, with or without taking leave, and starts another.
func (n *nemesis) churn(ctx context.Context) {
	list := n.yard.gateways()
	if len(list) == 0 {
		return
	}
	old := list[n.rng.IntN(len(list))]
	n.say("  %s", old.id)
	if s := old.store.Load(); s != nil && n.rng.IntN(2) == 0 {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		if err := s.Leave(try); err != nil {
			n.say("  %s leaves: %v", old.id, err)
		}
		cancel()
		old.stop(ctx)
	} else {
		old.kill(ctx)
	}
	n.yard.forget(old)
	fresh := n.yard.gateway()
	fresh.cfg.Join = n.yard.addresses()
	n.start(ctx, fresh)
}

// heal makes the world good again: the network, the disks, nodes that stopped.
func (n *nemesis) heal(ctx context.Context) {
	n.yard.net.Heal()
	for _, x := range n.yard.all() {
		x.disk.set(trouble{})
		if s := x.store.Load(); s != nil && s.Fault() != nil {
			n.revive(ctx, x, s.Fault())
		}
		if !x.running() {
			n.start(ctx, x)
		}
	}
}

// revive starts a node again that has stopped by itself, as its supervisor does.
func (n *nemesis) revive(ctx context.Context, x *node, fault error) {
	n.say("  %s had stopped: %v", x.id, fault)
	x.kill(ctx)
	if errors.Is(fault, raftstore.ErrRemoved) {
		// What it was told to do: an empty directory.
		x.dir += "-again"
		x.cfg.Dir = filepath.Clean(x.dir)
	}
	n.start(ctx, x)
}
