package transfer_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/engine"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/measure"
	"github.com/yardmaster/yardmaster/gpu/transfer"
	"github.com/yardmaster/yardmaster/gpu/transfer/fake"
)

var (
	seedFlag = flag.Uint64("seed", 0, "run only this seed of the fault test")
	runsFlag = flag.Int("runs", 3000, "seeds of the fault test")
)

var testShape = transfer.Shape{Layers: 3, Blocks: 64, BlockTokens: 4, PageBytes: 48, Hidden: 2, Hash: 7}

// site is one worker of a test: its memory and which blocks are whose.
type site struct {
	*fake.Worker
	memory   *fake.Memory
	registry *measure.Registry
	free     []int32
	poisoned map[int32]bool // given back, and overwritten to show who still writes
}

func newSite(t testing.TB, net *fake.Network, id fleet.WorkerID, epoch fleet.Epoch, change func(*transfer.Config)) *site {
	t.Helper()
	s := &site{memory: fake.NewMemory(testShape), registry: &measure.Registry{}, poisoned: map[int32]bool{}}
	for b := range testShape.Blocks {
		s.free = append(s.free, int32(b))
	}
	cfg := transfer.Config{
		Memory: s.memory, Registry: s.registry,
		ID: id, Own: &engine.OwnEpoch{},
	}
	cfg.Own.Set(epoch)
	if change != nil {
		change(&cfg)
	}
	w, err := net.Join("addr-"+string(id), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Worker = w
	return s
}

func (s *site) allot(random *rand.Rand, n int) []transfer.Ref {
	refs := make([]transfer.Ref, n)
	for i := range refs {
		at := random.IntN(len(s.free))
		if i > 0 && random.IntN(2) == 0 { // adjacent blocks are coalesced: have some
			if next := slices.Index(s.free, refs[i-1].Block+1); next >= 0 {
				at = next
			}
		}
		refs[i] = s.memory.Allot(s.free[at])
		delete(s.poisoned, s.free[at])
		s.free = slices.Delete(s.free, at, at+1)
	}
	return refs
}

const poison = 0xdb

// giveBack frees blocks and overwrites them, as their next holder would.
func (s *site) giveBack(refs []transfer.Ref) {
	for _, r := range refs {
		s.memory.Allot(r.Block)
		s.poisoned[r.Block] = true
		for layer := range testShape.Layers {
			page := s.memory.Run(layer, r.Block, 1)
			for i := range page {
				page[i] = poison
			}
		}
	}
}

func (s *site) checkPoison(t testing.TB) {
	t.Helper()
	for b := range s.poisoned {
		for layer := range testShape.Layers {
			for _, v := range s.memory.Run(layer, b, 1) {
				if v != poison {
					t.Fatalf("%v: block %d was written after it was given back", s, b)
				}
			}
		}
	}
}

// write puts the content of a transfer's page there; same reports whether it is.
func write(page []byte, id uint64, layer, index int) {
	random := rand.New(rand.NewPCG(id, uint64(layer)<<32|uint64(index)))
	for i := 0; i+8 <= len(page); i += 8 {
		binary.LittleEndian.PutUint64(page[i:], random.Uint64())
	}
}

func same(page []byte, id uint64, layer, index int) bool {
	want := make([]byte, len(page))
	write(want, id, layer, index)
	return slices.Equal(page, want)
}

// trial is one transfer of a test.
type trial struct {
	t      testing.TB
	random *rand.Rand
	net    *fake.Network
	p, d   *site
	id     uint64
	prompt []int32
	from   int
	dst    []transfer.Ref
	src    []transfer.Ref // from position 0

	imp      *transfer.Import
	dones    int
	err      error
	exp      *transfer.Export
	expErr   error
	legs     int // calls of ready
	ends     int // Finish or Abort
	releases int
	// mischief of its own
	abortAt  int // step at which the source gives up, or never
	cancelAt time.Duration
}

func newTrial(t testing.TB, random *rand.Rand, net *fake.Network, p, d *site, id uint64) *trial {
	prompt := make([]int32, 1+random.IntN(40))
	for i := range prompt {
		prompt[i] = random.Int32()
	}
	blocks := (len(prompt) + testShape.BlockTokens - 1) / testShape.BlockTokens
	from := random.IntN(blocks)
	return &trial{
		t: t, random: random, net: net, p: p, d: d, id: id, prompt: prompt, from: from * testShape.BlockTokens,
		dst: d.allot(random, blocks-from), src: p.allot(random, blocks), abortAt: -1,
	}
}

func (tr *trial) start() {
	ms := func(n int64) time.Duration { return time.Duration(tr.random.Int64N(n * int64(time.Millisecond))) }
	tr.net.At(ms(2), func() {
		if !tr.d.Dead() {
			tr.imp = tr.d.Node.Import(tr.id, tr.p.Peer(), transfer.Destination{Prompt: tr.prompt, From: tr.from, Blocks: tr.dst}, tr.done)
		}
	})
	tr.net.At(ms(2), func() {
		if !tr.p.Dead() {
			tr.p.Node.Meet(tr.id, tr.d.Peer(), tr.prompt, tr.ready)
		}
	})
	if tr.cancelAt > 0 {
		tr.net.At(tr.cancelAt, func() {
			if tr.imp == nil || tr.d.Dead() {
				return
			}
			tr.imp.Cancel()
			if tr.dones != 1 {
				tr.t.Errorf("transfer %d: Cancel returned before done", tr.id)
			}
		})
	}
}

func (tr *trial) done(hidden []float32, err error) {
	tr.dones++
	tr.err = err
	if err != nil {
		tr.d.giveBack(tr.dst)
		return
	}
	if !slices.Equal(hidden, tr.hidden()) {
		tr.t.Errorf("transfer %d: hidden state %v", tr.id, hidden)
	}
	for layer := range testShape.Layers {
		for i, r := range tr.dst {
			if !same(tr.d.memory.Run(layer, r.Block, 1), tr.id, layer, tr.from/testShape.BlockTokens+i) {
				tr.t.Errorf("transfer %d: committed with a wrong page (layer %d, index %d)", tr.id, layer, i)
			}
		}
	}
	tr.d.giveBack(tr.dst)
}

func (tr *trial) hidden() []float32 { return []float32{float32(tr.id), float32(len(tr.prompt))} }

func (tr *trial) ready(e *transfer.Export, err error) {
	tr.legs++
	tr.exp, tr.expErr = e, err
	if err != nil {
		tr.p.giveBack(tr.src)
		return
	}
	tr.compute(0, 0, 0)
}

// compute does one layer of one chunk after another, as an engine would.
func (tr *trial) compute(step, at, layer int) {
	tr.net.At(time.Duration(tr.random.Int64N(int64(300*time.Microsecond))), func() {
		if tr.p.Dead() {
			return
		}
		release := func() {
			tr.releases++
			tr.p.giveBack(tr.src)
		}
		if step == tr.abortAt {
			tr.ends++
			tr.exp.Abort(errors.New("engine error"), release)
			return
		}
		if at >= len(tr.prompt) {
			tr.ends++
			tr.exp.Finish(tr.hidden(), release)
			return
		}
		end := min(len(tr.prompt), at+13)
		tr.computed(layer, at, end)
		if layer++; layer == testShape.Layers {
			layer, at = 0, end
		}
		tr.compute(step+1, at, layer)
	})
}

func (tr *trial) computed(layer, from, to int) {
	table := make([]int32, len(tr.src))
	for i, r := range tr.src {
		table[i] = r.Block
	}
	for i := from / testShape.BlockTokens; i*testShape.BlockTokens < to; i++ {
		page := tr.p.memory.Run(layer, table[i], 1)
		if full := (i + 1) * testShape.BlockTokens; full <= to || to == len(tr.prompt) {
			write(page, tr.id, layer, i)
		} else {
			page[0]++ // half computed: must not be sent
		}
	}
	if from = max(from, tr.exp.From()); from < to {
		tr.exp.Computed(layer, from, to, table)
	}
}

func (tr *trial) check(clean bool) {
	tr.t.Helper()
	if want := btoi(tr.imp != nil); !tr.d.Dead() && tr.dones != want {
		tr.t.Errorf("transfer %d: done called %d times", tr.id, tr.dones)
	}
	if !tr.p.Dead() && (tr.legs != 1 || tr.releases != tr.ends || tr.exp != nil && tr.ends != 1) {
		tr.t.Errorf("transfer %d: %d legs, %d ends, %d releases", tr.id, tr.legs, tr.ends, tr.releases)
	}
	if clean && (tr.err != nil || tr.exp == nil || tr.exp.Wait(tr.t.Context()) != nil) {
		tr.t.Errorf("transfer %d failed without a fault: %v, %v", tr.id, tr.err, tr.expErr)
	}
	if tr.err != nil {
		if _, ok := errors.AsType[*transfer.Error](tr.err); !ok {
			tr.t.Errorf("transfer %d: untyped error %v", tr.id, tr.err)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestFaults runs random transfers under random faults and checks what package
// transfer promises.
func TestFaults(t *testing.T) {
	runs := *runsFlag
	if testing.Short() {
		runs = 200
	}
	first := uint64(1)
	if *seedFlag != 0 {
		first, runs = *seedFlag, 1
	}
	outcomes := map[string]int{}
	for seed := first; seed < first+uint64(runs); seed++ {
		runFaults(t, seed, outcomes)
		if t.Failed() {
			t.Fatalf("replay with -seed=%d", seed)
		}
	}
	t.Logf("%d runs: %v", runs, outcomes)
}

func runFaults(t *testing.T, seed uint64, outcomes map[string]int) {
	random := rand.New(rand.NewPCG(seed, 0))
	var script []fake.Fault
	clean := seed%10 == 0
	if !clean {
		script = fake.RandomFaults(random, 1+random.IntN(3), 60, "p", "d")
	}
	net := fake.New(seed, script...)
	net.BytesPerSecond = []float64{1e9, 1e6, 1e5}[random.IntN(3)]
	p, d := newSite(t, net, "p", 3, nil), newSite(t, net, "d", 4, nil)
	trials := make([]*trial, 1+random.IntN(4))
	for i := range trials {
		trials[i] = newTrial(t, random, net, p, d, uint64(i)+1)
		if !clean && random.IntN(6) == 0 {
			trials[i].cancelAt = time.Duration(random.Int64N(int64(8 * time.Millisecond)))
		}
		if !clean && random.IntN(6) == 0 {
			trials[i].abortAt = random.IntN(12)
		}
		trials[i].start()
	}
	net.OnRead = func(m *transfer.Move) {
		if tr := trials[m.Frame.ID-1]; tr.releases > 0 {
			t.Errorf("transfer %d: a page is read after release", tr.id)
		}
	}
	for limit := net.Clock().Now().Add(3 * time.Minute); net.Step(limit); {
		p.checkIfReused(random, t)
	}
	for _, tr := range trials {
		tr.check(clean)
		outcomes[outcome(tr)]++
	}
	for _, s := range []*site{p, d} {
		s.checkPoison(t)
		if n := s.Node.Live(); n != 0 && !s.Dead() {
			t.Errorf("%v: %d transfers left", s, n)
		}
		if q := s.registry.Gauge(measure.TransferQuarantined).Value(); q != 0 && !s.Dead() {
			t.Errorf("%v: %v bytes quarantined at the end", s, q)
		}
		if n := s.Node.Remembered(); n != 0 && !s.Dead() {
			t.Errorf("%v: %d transfers remembered long after", s, n)
		}
	}
}

func (s *site) checkIfReused(random *rand.Rand, t testing.TB) {
	if random.IntN(64) == 0 {
		s.checkPoison(t)
	}
}

func outcome(tr *trial) string {
	switch {
	case tr.dones == 0:
		return "dead"
	case tr.err == nil:
		return "committed"
	default:
		return transfer.AsError("", tr.err).Reason()
	}
}
