package host_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/yardmaster/yardmaster/policies/abi"
	"github.com/yardmaster/yardmaster/policies/host"
	"github.com/yardmaster/yardmaster/policies/module"
	"github.com/yardmaster/yardmaster/policies/module/wattest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// services records what guests ask for.
type services struct {
	mu    sync.Mutex
	lines []string
	sums  map[string]int64
	now   int64
}

func (s *services) Log(policy string, level int, line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, policy+" "+string(rune('0'+level))+" "+string(line))
}

func (s *services) Count(_ string, counter int, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sums == nil {
		s.sums = map[string]int64{}
	}
	s.sums[string(rune('0'+counter))] += n
}

func (s *services) Observe(string, int, float64)                  {}
func (s *services) NowMillis() int64                              { return s.now }
func (s *services) Get(string, bool, []byte, []byte) int          { return -1 }
func (s *services) Set(string, bool, []byte, []byte) bool         { return true }
func (s *services) Add(string, bool, []byte, int64) (int64, bool) { return 0, false }

func newHost(t testing.TB, s host.Services) *host.Host {
	t.Helper()
	h, err := host.New(context.Background(), s, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// The places of the test router's buffers, for 4,096 rows.
const (
	rows     = 4096
	headerAt = 1024
	blockAt  = 2048
	paramAt  = 2304
	columnA  = 65536
	columnB  = columnA + 4*rows
	scores   = columnB + 4*rows
)

const manifest = `{"abi":"1.0","kind":"router","name":"test","version":"1",
	"columns":[{"name":"queued_tokens"},{"name":"prefill_seconds_per_token"}],
	"params":[{"name":"weight","type":"float","default":2}],
	"capabilities":["log","metrics","random","time"],"counters":[{"name":"calls"}]}`

// simd is score = a × b, four at a time.
const simd = `loop
	local.get 1
	local.get 1 v128.load 65536 local.get 1 v128.load 81920 f32x4.mul v128.store 98304
	local.get 1 i32.const 16 i32.add local.tee 1 local.get 0 i32.const 2 i32.shl i32.lt_u br_if 0 end i32.const 0`

// parts are what a test router is made of; empty ones are good.
type parts struct {
	score, initialise, layout, configure string
	growing                              bool
	manifest                             string
}

// router is a policy that scores by the code given.
func router(code string) []byte { return parts{score: code}.build() }

func (p parts) build() []byte {
	or := func(code, standard string) string {
		if code == "" {
			return standard
		}
		return code
	}
	m := wattest.New()
	m.Import(abi.ImportModule, "log", "i32 i32 i32 ->")
	m.Import(abi.ImportModule, "counter_add", "i32 i64 ->")
	m.Import(abi.ImportModule, "rand_u64", "-> i64")
	m.Import("wasi_snapshot_preview1", "random_get", "i32 i32 -> i32")
	m.Import(abi.ImportModule, "now_ms", "-> i64")
	if p.growing {
		m.Memory(2, -1)
	} else {
		m.Memory(2, 2)
	}
	m.Export("memory", module.KindMemory, 0)
	m.Export("ym_abi_1", module.KindFunc, m.Func("->", "", ""))
	m.Export("ym_layout", module.KindFunc, m.Func("-> i32", "", or(p.layout, "i32.const 1024")))
	m.Export("ym_configure", module.KindFunc, m.Func("i32 -> i32", "", or(p.configure, "i32.const 0")))
	m.Export("ym_score", module.KindFunc, m.Func("i32 -> i32", "i32", or(p.score, simd)))
	if p.initialise != "" {
		m.Export("_initialize", module.KindFunc, m.Func("->", "", p.initialise))
	}
	var header []byte
	for _, w := range []uint32{0x314c4d59, 1 << 16, 13, rows, blockAt, abi.RouterRequestSize, paramAt, 8, 2, 1, columnA, columnB, scores} {
		header = binary.LittleEndian.AppendUint32(header, w)
	}
	m.Data(headerAt, string(header))
	m.Data(64, "hello")
	m.Before(255, wattest.Custom(abi.Section, or(p.manifest, manifest))...)
	return m.Bytes()
}

func load(t testing.TB, h *host.Host, wasm []byte, instances int) *host.Policy {
	t.Helper()
	p, err := h.Load(context.Background(), wasm, instances, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// The bytes that a guest gets are those of the numbers that it gets.
func TestRandomBytesAreRandomNumbers(t *testing.T) {
	h := newHost(t, &services{})
	bits := func(code string) (got [4]uint32) {
		p := load(t, h, router(code), 1)
		in := p.Take()
		defer p.Put(in)
		in.Seed(7)
		values, err := in.Score(4)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			got[i] = math.Float32bits(values[i])
		}
		return got
	}
	numbers := bits("i32.const 98304 call 2 i64.store 0 i32.const 98312 call 2 i64.store 0 i32.const 0")
	if drawn := bits("i32.const 98304 i32.const 16 call 3"); drawn != numbers || drawn == [4]uint32{} {
		t.Errorf("%x, the numbers are %x", drawn, numbers)
	}
}

func TestScoresAreWhatTheGuestComputes(t *testing.T) {
	p := load(t, newHost(t, &services{}), router(simd), 2)
	for _, n := range []int{0, 1, 16, rows} {
		in := p.Take()
		for i := range n {
			in.F32(0)[i], in.F32(1)[i] = float32(i), 0.5
		}
		got, err := in.Score(n)
		if err != nil || len(got) != n {
			t.Fatalf("n=%d: %d scores, %v", n, len(got), err)
		}
		for i, v := range got {
			if v != float32(i)/2 {
				t.Fatalf("n=%d: score %d is %v", n, i, v)
			}
		}
		if used := in.Used(); used <= 0 || used > 100_000 {
			t.Errorf("n=%d used %d units", n, used)
		}
		p.Put(in)
	}
	in := p.Take()
	defer p.Put(in)
	if _, err := in.Score(rows + 1); !errors.Is(err, host.ErrRows) {
		t.Errorf("got %v", err)
	}
	if _, err := in.Route(1); !errors.Is(err, host.ErrRefused) {
		t.Errorf("got %v", err)
	}
}

func TestNothingWaitsForAnInstance(t *testing.T) {
	p := load(t, newHost(t, &services{}), router(simd), 2)
	a, b := p.Take(), p.Take()
	if a == nil || b == nil || a == b {
		t.Fatal("two instances were to be had")
	}
	if p.Take() != nil {
		t.Error("a third instance")
	}
	p.Put(a)
	if c := p.Take(); c != a {
		t.Error("the one that came back was not lent again")
	}
	p.Put(a)
	p.Put(b)
}

// A guest that traps, or does not end, is replaced and the next call is good.
func TestFaultsAreContained(t *testing.T) {
	tests := []struct {
		name, code string
		want       error
	}{
		{"trap", "local.get 0 i32.const 7 i32.eq if unreachable end " + simd, host.ErrTrap},
		{"endless loop", "local.get 0 i32.const 7 i32.eq if loop br 0 end end " + simd, host.ErrFuel},
		{"recursion", "local.get 0 i32.const 7 i32.eq if local.get 0 call 8 drop end " + simd, host.ErrFuel},
		{"no answer", "local.get 0 i32.const 7 i32.eq if i32.const 3 return-of end " + simd, host.ErrRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := load(t, newHost(t, &services{}), router(strings.Replace(tt.code, "return-of", "return", 1)), 1)
			for range 20 {
				in := take(t, p)
				_, err := in.Score(7)
				p.Put(in)
				if !errors.Is(err, tt.want) {
					t.Fatalf("got %v, want %v", err, tt.want)
				}
				good := take(t, p)
				if good == in && !errors.Is(tt.want, host.ErrRefused) {
					t.Error("an instance that failed was lent again")
				}
				if _, err := good.Score(16); err != nil {
					t.Errorf("the next call: %v", err)
				}
				p.Put(good)
			}
			if p.Lost() != 0 {
				t.Errorf("%d instances were lost", p.Lost())
			}
		})
	}
}

// take waits until a failed instance has been replaced.
func take(t *testing.T, p *host.Policy) *host.Instance {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if in := p.Take(); in != nil {
			return in
		}
	}
	t.Fatal("no instance came back")
	return nil
}

func TestGuestsReachTheHost(t *testing.T) {
	s := &services{now: 1234}
	code := `i32.const 1 i32.const 64 i32.const 5 call 0
		i32.const 0 i64.const 3 call 1
		i32.const 9 i64.const 3 call 1
		i32.const 98304 call 2 f32.convert_i64_u f32.store 0
		i32.const 0`
	p := load(t, newHost(t, s), router(code), 1)
	draw := func(seed uint64) float32 {
		in := take(t, p)
		defer p.Put(in)
		in.Seed(seed)
		got, err := in.Score(1)
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	if a, b, c := draw(1), draw(2), draw(1); a != c || a == b {
		t.Errorf("the numbers do not follow from the seed: %v %v %v", a, b, c)
	}
	if len(s.lines) != 3 || s.lines[0] != "test 1 hello" || s.sums["0"] != 9 || len(s.sums) != 1 {
		t.Errorf("lines %q, sums %v", s.lines, s.sums)
	}
}

func TestLinesAreBounded(t *testing.T) {
	s := &services{}
	p := load(t, newHost(t, s), router("loop i32.const 9 i32.const 64 i32.const 5000 call 0 local.get 1 i32.const 1 i32.add local.tee 1 i32.const 1000 i32.lt_u br_if 0 end i32.const 0"), 1)
	in := take(t, p)
	defer p.Put(in)
	if _, err := in.Score(1); err != nil {
		t.Fatal(err)
	}
	if len(s.lines) != 16 || len(s.lines[0]) != len("test 3 ")+1024 {
		t.Errorf("%d lines, the first of %d bytes", len(s.lines), len(s.lines[0]))
	}
}

func TestPoliciesThatCannotBeLoaded(t *testing.T) {
	h := newHost(t, &services{})
	tests := []struct {
		name   string
		wasm   []byte
		params []float64
		want   string
	}{
		{"no module", []byte("x"), nil, "no WebAssembly binary"},
		{"no manifest", wattest.Header(), nil, "no custom section"},
		{"too many params", router(simd), []float64{1, 2}, "2 params for test, which has 1"},
		{"trap in _initialize", parts{initialise: "unreachable"}.build(), nil, "policy trapped"},
		{"_initialize without end", parts{initialise: "loop br 0 end"}.build(), nil, "policy out of fuel: _initialize"},
		{"layout without end", parts{layout: "loop br 0 end i32.const 0"}.build(), nil, "policy out of fuel: ym_layout"},
		{"layout outside the memory", parts{layout: "i32.const -4"}.build(), nil, "is not in the memory of 131072 bytes"},
		{"layout without a header", parts{layout: "i32.const 4096"}.build(), nil, "begins with 0x0"},
		{"overlapping buffers", parts{initialise: "i32.const 1024 i32.const 65536 i32.store 48"}.build(), nil, "overlaps"},
		{"params refused", parts{configure: "i32.const 5"}.build(), nil, "ym_configure returned 5 for its params"},
		{"a param that is none", router(simd), []float64{math.NaN()}, `param "weight" is no number`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := h.Load(t.Context(), tt.wasm, 1, tt.params); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestCloseWaitsForWhatIsLent(t *testing.T) {
	h := newHost(t, &services{})
	p, err := h.Load(t.Context(), router(simd), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := p.Take()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if p.Take() != nil {
		t.Error("a closed policy lent an instance")
	}
	if _, err := in.Score(1); err != nil {
		t.Errorf("a lent instance died: %v", err)
	}
	p.Put(in)
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestManyCallers(t *testing.T) {
	p := load(t, newHost(t, &services{}), router("local.get 0 i32.const 7 i32.eq if unreachable end "+simd), 4)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 200 {
				in := p.Take()
				if in == nil {
					continue
				}
				n := 16
				if i%20 == worker {
					n = 7
				}
				_, err := in.Score(n)
				if (err != nil) != (n == 7) {
					t.Errorf("n=%d: %v", n, err)
				}
				p.Put(in)
			}
		})
	}
	all.Wait()
	for range 4 {
		defer p.Put(take(t, p))
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	p := load(t, newHost(t, &services{}), router(simd), 2)
	request := abi.RouterRequest{Prompt: 100}
	got := testing.AllocsPerRun(100, func() {
		in := p.Take()
		request.Put(in.Request())
		in.F32(0)[0] = 1
		if _, err := in.Score(16); err != nil {
			t.Error(err)
		}
		p.Put(in)
	})
	if got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// BenchmarkDecision is take, two columns and the request in, fuel, call, the least
// score, and put.
func BenchmarkDecision(b *testing.B) {
	p := load(b, newHost(b, &services{}), router(simd), 4)
	a := make([]float32, rows)
	for i := range a {
		a[i] = float32(1 + (i*7919+4000)%rows)
	}
	request := abi.RouterRequest{Prompt: 100}
	for _, n := range []int{16, 256, 1024, 4096} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			sum := 0
			for b.Loop() {
				in := p.Take()
				request.Put(in.Request())
				copy(in.F32(0), a[:n])
				copy(in.F32(1), a[:n])
				cost, err := in.Score(n)
				if err != nil {
					b.Fatal(err)
				}
				best, least := 0, float32(math.MaxFloat32)
				for i, c := range cost {
					if c < least {
						best, least = i, c
					}
				}
				p.Put(in)
				sum += best
			}
		})
	}
}

// Columns stay where they are when the guest's memory grows, and more than was
// asked for is not to be had.
func TestColumnsStayWhenTheMemoryGrows(t *testing.T) {
	grown := strings.Replace(manifest, `"version":"1"`, `"version":"1","pages":64`, 1)
	m := parts{score: "i32.const 20 memory.grow drop " + simd, growing: true, manifest: grown}
	p := load(t, newHost(t, &services{}), m.build(), 1)
	in := take(t, p)
	defer p.Put(in)
	for range 5 {
		in.F32(0)[5], in.F32(1)[5] = 3, 4
		got, err := in.Score(8)
		if err != nil || got[5] != 12 {
			t.Fatalf("got %v, %v", got, err)
		}
	}
}

// A host is not closed under guests that may be running.
func TestHostsCloseAfterTheirPolicies(t *testing.T) {
	h, err := host.New(t.Context(), &services{}, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := h.Load(t.Context(), router(simd), 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(t.Context()); !errors.Is(err, host.ErrOpen) {
		t.Errorf("got %v", err)
	}
	in := p.Take()
	if _, err := in.Score(16); err != nil {
		t.Error(err)
	}
	p.Put(in)
	for range 2 { // the second time is nothing
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// What a thousand loads and closings leave behind is nothing.
func TestReloadsLeaveNothing(t *testing.T) {
	h := newHost(t, &services{})
	reload := func(n int) {
		for range n {
			p, err := h.Load(t.Context(), router(simd), 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			in := p.Take()
			in.F32(0)[1] = 1
			p.Put(in)
			if err := p.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	reload(20)
	before := resident()
	reload(200)
	grown := resident() - before
	t.Logf("200 reloads left %d KiB", grown>>10)
	if grown > 8<<20 { // the runtime gives memory back when it likes
		t.Errorf("200 reloads left %d KiB", grown>>10)
	}
}
