package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster/yardmaster/core/clock"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
)

func TestLocalStateIsBounded(t *testing.T) {
	l := newLocal()
	buf := make([]byte, 8)
	for i := range mostLocalKeys {
		l.set(fmt.Append(nil, i), []byte("v"))
	}
	if n := l.get([]byte("0"), buf); n != 1 || buf[0] != 'v' {
		t.Fatalf("%d", n)
	}
	l.set([]byte("new"), []byte("v"))
	if l.get([]byte("0"), buf) != 1 || l.get([]byte("1"), buf) != -1 || len(l.rows) != mostLocalKeys {
		t.Error("not what was used longest ago made room")
	}
	value := make([]byte, rollout.MaxStateValue)
	for i := range mostLocalKeys {
		l.set(fmt.Append(nil, i), value)
	}
	if l.bytes > mostLocalBytes || len(l.rows) < 200 {
		t.Errorf("%d bytes in %d rows", l.bytes, len(l.rows))
	}
	if n := l.get([]byte("1023"), buf); n != rollout.MaxStateValue {
		t.Errorf("a value of %d bytes", n)
	}
	if l.add([]byte("n"), 5); l.add([]byte("n"), -7) != -2 || l.get([]byte("n"), buf) != 8 || rollout.Number(buf) != -2 {
		t.Error("numbers do not add up")
	}
}

// Whatever is done to it, it counts its bytes right and keeps its bounds.
func TestLocalStateProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, model := newLocal(), map[string]int{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			key := rapid.StringMatching("[a-e]").Draw(t, "key")
			if rapid.Bool().Draw(t, "add") {
				l.add([]byte(key), 1)
				model[key] = 8
				continue
			}
			n := rapid.IntRange(0, 300).Draw(t, "size")
			l.set([]byte(key), make([]byte, n))
			model[key] = n
		}
		bytes := 0
		for key, n := range model {
			bytes += len(key) + n
			if got := l.get([]byte(key), nil); got != n {
				t.Fatalf("%s has %d bytes, want %d", key, got, n)
			}
		}
		if l.bytes != bytes {
			t.Fatalf("%d bytes counted of %d", l.bytes, bytes)
		}
	})
}

// keeper is a cluster of which only the state counts.
type keeper struct {
	Cluster
	table *rollout.Table
	fail  error
	index uint64
}

func (k *keeper) Rollout() *rollout.Table { return k.table }

func (k *keeper) WriteState(_ context.Context, policy string, writes []rollout.Write) error {
	if k.fail != nil {
		return k.fail
	}
	k.index++
	next, err := k.table.WriteState(policy, writes, k.index)
	k.table = next
	return err
}

func TestWritesAreReadAtOnceAndBatched(t *testing.T) {
	table, err := (&rollout.Table{}).Put(rollout.Version{Policy: "p", Release: "1", Kind: rollout.Observer, Digest: rollout.Digest{1}, Size: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{table: table, index: 1}
	r := &measure.Registry{}
	n := &Node{deps: Deps{Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), Registry: r}}
	w := newWriter(k, r)
	number := func() int64 {
		value, _ := w.get("p", []byte("n"))
		return rollout.Number(value)
	}
	add := func(delta, want int64) {
		t.Helper()
		if sum, ok := w.add("p", []byte("n"), delta); sum != want || !ok || number() != want {
			t.Errorf("%d, %v, then %d; want %d", sum, ok, number(), want)
		}
	}
	add(5, 5)
	add(-2, 3)
	if len(w.waiting["p"]) != 1 {
		t.Errorf("%d writes wait", len(w.waiting["p"]))
	}
	w.flush(t.Context(), n)
	if value, _ := k.table.State("p").Get("n"); rollout.Number(value) != 3 || number() != 3 || w.pending.Load() != 0 {
		t.Errorf("committed %d", rollout.Number(value))
	}
	if !w.set("p", []byte("n"), rollout.NumberValue(40)) {
		t.Error("refused")
	}
	add(2, 42)
	k.fail = errors.New("no leader")
	w.flush(t.Context(), n)
	if number() != 3 || r.Counter(measure.PolicyWrites, "p", "lost").Value() != 1 {
		t.Errorf("a lost write is still read: %d", number())
	}
	for i := range rollout.MaxWrites {
		if !w.set("p", fmt.Append(nil, i), nil) {
			t.Fatal("refused too early")
		}
	}
	if w.set("p", []byte("more"), nil) || r.Counter(measure.PolicyWrites, "p", "refused").Value() != 1 {
		t.Error("a batch has no bound")
	}
}

func (*keeper) Leading() bool { return true }

// What a shadow writes nobody else reads, and it reads its own.
func TestStateOfAShadow(t *testing.T) {
	table, err := (&rollout.Table{}).Put(rollout.Version{Policy: "p", Release: "1", Kind: rollout.Observer, Digest: rollout.Digest{1}, Size: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if table, err = table.WriteState("p", []rollout.Write{{Op: rollout.WriteAdd, Key: "n", Delta: 40}}, 2); err != nil {
		t.Fatal(err)
	}
	k := &keeper{table: table, index: 2}
	r := &measure.Registry{}
	n := &Node{
		deps:   Deps{Cluster: k, Clock: clock.Real{}, Log: slog.New(slog.DiscardHandler), Registry: r},
		writer: newWriter(k, r), locals: locals{by: map[string]*local{}}, families: map[string]bool{},
	}
	n.status.Store(&Status{})
	m := &abi.Manifest{Name: "p", Version: "1"}
	decides, shadow := n.servicesOf(m, false), n.servicesOf(m, true)
	read := func(s *services, replicated bool) int64 {
		buf := make([]byte, 8)
		if s.Get("p", replicated, []byte("n"), buf) < 0 {
			return -1
		}
		return rollout.Number(buf)
	}
	for _, replicated := range []bool{false, true} {
		before := read(decides, replicated) // nothing, and 40
		sum, ok := shadow.Add("p", replicated, []byte("n"), 2)
		if want := max(before, 0) + 2; !ok || sum != want || read(shadow, replicated) != want || read(decides, replicated) != before {
			t.Errorf("replicated %v: %d, %v; the shadow reads %d, what decides %d", replicated, sum, ok, read(shadow, replicated), read(decides, replicated))
		}
		if !shadow.Set("p", replicated, []byte("n"), rollout.NumberValue(7)) || read(shadow, replicated) != 7 || read(decides, replicated) != before {
			t.Errorf("replicated %v: the shadow reads %d, what decides %d", replicated, read(shadow, replicated), read(decides, replicated))
		}
	}
	if n.writer.pending.Load() != 0 {
		t.Error("a shadow's write is on its way to the cluster")
	}
}

func TestFiveFaultsInHalfAMinuteTrip(t *testing.T) {
	at := clock.NewVirtual(clock.Real{}.Now())
	tripped := 0
	fresh := func() *faults { return newFaults(&measure.Registry{}, "p@1", func() { tripped++ }) }
	slow := fresh()
	for range 50 {
		slow.note(host.FaultTrap, at.Now()) // a trap each 8 s
		at.Advance(8 * time.Second)
	}
	if tripped != 0 {
		t.Error("four faults in 30 s have tripped")
	}
	busy := fresh()
	for range 50 {
		busy.note(host.FaultBusy, at.Now())
	}
	if tripped != 0 || busy.out() {
		t.Error("being busy is no fault")
	}
	fast := fresh()
	for range 50 {
		fast.note(host.FaultTrap, at.Now())
		at.Advance(7 * time.Second)
	}
	if tripped != 1 || !fast.out() || fast.why() != "trap" {
		t.Errorf("tripped %d times for %q", tripped, fast.why())
	}
}
