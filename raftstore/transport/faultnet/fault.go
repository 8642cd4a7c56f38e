package faultnet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Fault is what happens to one direction between two nodes. The zero value is a
// healthy network.
type Fault struct {
	Cut       bool          // reset the connections that were dialled this way, refuse new ones
	Blackhole bool          // hold everything back
	Delay     time.Duration // added to each byte's way
	Jitter    time.Duration // at most added to Delay, by chance; the order stays
	Rate      int           // bytes a second on each connection; 0 is unlimited
}

// Anyone is the From of connections that come by Front: who dialled is not
// known.
const Anyone = "*"

// Link is one direction between two nodes.
type Link struct{ From, To string }

// Step is a state of the network, with a name for logs.
type Step struct {
	Name   string
	Faults map[Link]Fault // links that are not in it are healthy
}

// Partition separates the sides from one another: nothing gets from one to
// another, in either direction.
func Partition(sides ...[]string) Step {
	s := Step{Faults: map[Link]Fault{}}
	names := make([]string, len(sides))
	for i, side := range sides {
		names[i] = strings.Join(side, ",")
		for _, other := range sides[i+1:] {
			for _, a := range side {
				for _, b := range other {
					s.Faults[Link{a, b}] = Fault{Blackhole: true}
					s.Faults[Link{b, a}] = Fault{Blackhole: true}
				}
			}
		}
	}
	s.Name = "partition " + strings.Join(names, " | ")
	return s
}

// OneWay is a network in which to hears from no more.
func OneWay(from, to string) Step {
	return Step{
		Name:   fmt.Sprintf("one-way cut %s -> %s", from, to),
		Faults: map[Link]Fault{{from, to}: {Blackhole: true}},
	}
}

// Slow is a network in which every direction has the fault.
func Slow(nodes []string, f Fault) Step {
	s := Step{Name: fmt.Sprintf("slow %+v", f), Faults: map[Link]Fault{}}
	for _, a := range nodes {
		for _, b := range nodes {
			if a != b {
				s.Faults[Link{a, b}] = f
			}
		}
	}
	return s
}

// bridge is the step in which one node alone reaches both halves of the others.
const bridge = 2

// Draw is a step by chance: a node alone, two halves, a bridge, a one-way cut,
// resets, delays, a trickle. The same state of rng gives the same step. It
// takes two nodes at least.
func Draw(rng *rand.Rand, nodes []string) Step {
	order := slices.Clone(nodes)
	rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	a, b := order[0], order[1]
	kind := rng.IntN(7)
	if kind == bridge && len(order) < 3 {
		kind = 0
	}
	switch kind {
	case 0:
		return Partition(order[:1], order[1:])
	case 1:
		half := (len(order) + 1) / 2
		return Partition(order[:half], order[half:])
	case bridge:
		half := (len(order) + 1) / 2
		s := Partition(order[1:half], order[half:])
		s.Name = "bridge " + a + ": " + s.Name
		return s
	case 3:
		return OneWay(a, b)
	case 4:
		return Step{
			Name:   fmt.Sprintf("resets %s <-> %s", a, b),
			Faults: map[Link]Fault{{a, b}: {Cut: true}, {b, a}: {Cut: true}},
		}
	case 5:
		f := Fault{Delay: time.Duration(1+rng.IntN(50)) * time.Millisecond}
		f.Jitter = f.Delay / 2
		return Slow(nodes, f)
	default:
		rate := 1 << (10 + rng.IntN(6))
		return Step{
			Name:   fmt.Sprintf("trickle %s <-> %s, %d B/s", a, b, rate),
			Faults: map[Link]Fault{{a, b}: {Rate: rate}, {b, a}: {Rate: rate}},
		}
	}
}
