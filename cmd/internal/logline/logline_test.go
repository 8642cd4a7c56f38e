package logline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reference is the handler of log/slog whose bytes ours must equal.
func reference(w io.Writer, asJSON bool) slog.Handler {
	if asJSON {
		return slog.NewJSONHandler(w, nil)
	}
	return slog.NewTextHandler(w, nil)
}

type textError struct{ text string }

func (n *textError) Error() string { return n.text }

type late struct{}

func (late) LogValue() slog.Value { return slog.StringValue("late value") }

type described struct{ text string }

func (d described) AppendText(b []byte) ([]byte, error)   { return append(b, d.text...), nil }
func (d described) MarshalText() (text []byte, err error) { return []byte(d.text), nil }

// shown reports whether anything of an attribute gets into a line. After a group of
// which nothing does, slog's own text handler goes on under the group's name.
func shown(a slog.Attr) bool {
	if a.Value.Kind() == slog.KindGroup {
		return slices.ContainsFunc(a.Value.Group(), shown)
	}
	return !a.Equal(slog.Attr{})
}

func TestEqualsSlog(t *testing.T) {
	words := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{
		"", "plain", "two words", "a=b", `back\slash`, `quo"te`, "line\nbreak", "tab\t", "\x00\x7f\b\f", "é", "\u2028\u2029", "\xff\xfe", "\u00a0", "a, b; c=d",
	}))
	var value func(depth int) *rapid.Generator[slog.Value]
	attr := func(depth int) *rapid.Generator[slog.Attr] {
		return rapid.Custom(func(t *rapid.T) slog.Attr {
			return slog.Attr{Key: words.Draw(t, "key"), Value: value(depth).Draw(t, "value")}
		})
	}
	value = func(depth int) *rapid.Generator[slog.Value] {
		return rapid.Custom(func(t *rapid.T) slog.Value {
			text := words.Draw(t, "text")
			n := rapid.Int64().Draw(t, "number")
			all := []slog.Value{
				slog.StringValue(text), slog.Int64Value(n), slog.Uint64Value(uint64(n)), slog.BoolValue(n > 0),
				slog.Float64Value(rapid.Float64().Draw(t, "float")), slog.DurationValue(time.Duration(n)),
				slog.TimeValue(time.Unix(n%1e9, n%1e9).UTC()), slog.AnyValue(errors.New(text)), slog.AnyValue([]byte(text)),
				slog.AnyValue(described{text}), slog.AnyValue(struct{ A, B string }{text, text}), slog.AnyValue((*textError)(nil)),
				slog.AnyValue(late{}), slog.AnyValue(netip.AddrFrom4([4]byte{1, 2, 3, 4})), slog.AnyValue(big.NewInt(n)),
				slog.AnyValue(nil), slog.AnyValue([]string{text}), slog.AnyValue(map[string]int{text: 1}),
				{},
			}
			if depth > 0 {
				if group := rapid.SliceOfN(attr(depth-1), 0, 3).Draw(t, "group"); len(group) == 0 || slices.ContainsFunc(group, shown) {
					all = append(all, slog.GroupValue(group...))
				}
			}
			return rapid.SampledFrom(all).Draw(t, "which")
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		asJSON := rapid.Bool().Draw(t, "json")
		var ours, theirs bytes.Buffer
		own := New(&ours, Options{JSON: asJSON})
		var a, b slog.Handler = own, reference(&theirs, asJSON)
		for range rapid.IntRange(0, 4).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "group") {
				name := words.Filter(func(s string) bool { return s != "" }).Draw(t, "name") // slog does not hold to its own rule for ""
				a, b = a.WithGroup(name), b.WithGroup(name)
				continue
			}
			attrs := rapid.SliceOfN(attr(1), 0, 3).Draw(t, "attrs")
			a, b = a.WithAttrs(attrs), b.WithAttrs(attrs)
		}
		r := slog.NewRecord(time.Unix(rapid.Int64Range(0, 1<<32).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC(), slog.LevelInfo, words.Draw(t, "msg"), 0)
		r.AddAttrs(rapid.SliceOfN(attr(2), 0, 8).Draw(t, "record")...)
		if err := a.Handle(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		if err := b.Handle(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		if err := own.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(theirs.String(), ours.String()); diff != "" {
			t.Errorf("differs from slog's (-want +got):\n%s", diff)
		}
	})
}

// What slog leaves to encoding/json is escaped by other rules than its strings.
func TestEscapes(t *testing.T) {
	for _, text := range []string{"\b\f", "\x00\x1f\x7f", "\u2028\xff<&>", "a\"\\\n\r\t"} {
		var ours, theirs bytes.Buffer
		h := New(&ours, Options{JSON: true})
		r := slog.NewRecord(time.Unix(1, 0).UTC(), slog.LevelInfo, text, 0)
		r.AddAttrs(slog.String(text, text), slog.Any("described", described{text}), slog.Any("error", errors.New(text)), slog.Any("map", map[string]string{text: text}))
		_, _ = h.Handle(t.Context(), r), reference(&theirs, true).Handle(t.Context(), r)
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(theirs.String(), ours.String()); diff != "" {
			t.Errorf("%q differs from slog's (-want +got):\n%s", text, diff)
		}
	}
}

func TestSlogtest(t *testing.T) {
	var out bytes.Buffer
	h := New(&out, Options{JSON: true})
	err := slogtest.TestHandler(h, func() []map[string]any {
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		var all []map[string]any
		for line := range strings.Lines(out.String()) {
			one := map[string]any{}
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatal(err)
			}
			all = append(all, one)
		}
		return all
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLevel(t *testing.T) {
	var out bytes.Buffer
	h := New(&out, Options{Level: slog.LevelWarn})
	log := slog.New(h)
	log.Info("no")
	log.Warn("yes")
	if err := h.Close(); err != nil || strings.Contains(out.String(), "no") || !strings.Contains(out.String(), "msg=yes") {
		t.Errorf("%v: %q", err, &out)
	}
}

// writer counts what it is given, and stands still while it is stuck.
type writer struct {
	mu     sync.Mutex
	out    bytes.Buffer
	writes int
	stuck  chan struct{} // nil is never
	began  chan struct{} // receives once per write when not nil
}

func (w *writer) Write(p []byte) (int, error) {
	if w.began != nil {
		w.began <- struct{}{}
	}
	if w.stuck != nil {
		<-w.stuck
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	return w.out.Write(p)
}

func TestManyLinesAreFewWrites(t *testing.T) {
	w := &writer{}
	h := New(w, Options{})
	log := slog.New(h)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 1000 {
				log.Info("line", "g", g, "i", i)
			}
		})
	}
	all.Wait()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(w.out.String(), "\n"); n != 8000 {
		t.Errorf("%d lines", n)
	}
	if w.writes > 1000 {
		t.Errorf("%d writes", w.writes)
	}
	next := map[string]int{}
	for line := range strings.Lines(w.out.String()) {
		var g string
		var i int
		_, rest, _ := strings.Cut(line, " g=")
		if _, err := fmt.Sscanf(rest, "%s i=%d", &g, &i); err != nil {
			t.Fatal(line, err)
		}
		if next[g] != i {
			t.Fatalf("line %d of %s where %d was due", i, g, next[g])
		}
		next[g]++
	}
}

func TestStuckWriterHoldsNobodyUp(t *testing.T) {
	w := &writer{stuck: make(chan struct{}), began: make(chan struct{}, 8)}
	h := New(w, Options{})
	log := slog.New(h)
	log.Info("first")
	<-w.began // the writer is stuck from here on
	long := strings.Repeat("x", 1000)
	for range 3 * maxPending / 1000 {
		log.Info(long)
	}
	if n := len(h.sink.pending); n > maxPending {
		t.Errorf("%d bytes wait", n)
	}
	if err := h.Close(); !errors.Is(err, errStuck) {
		t.Errorf("closing said %v", err)
	}
	close(w.stuck)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(w.out.String(), "log lines were left out") {
		t.Error("nothing says that lines are missing")
	}
}

func TestLinesAfterClose(t *testing.T) {
	var out bytes.Buffer
	h := New(&out, Options{})
	log := slog.New(h)
	log.Info("early")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	log.Info("late")
	if !strings.HasSuffix(out.String(), "msg=late\n") {
		t.Fatalf("a late line is not there when its caller goes on: %q", &out)
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 100 {
				log.Info("late")
			}
		})
	}
	callers.Wait()
	if n := strings.Count(out.String(), "msg=late\n"); n != 801 {
		t.Errorf("%d late lines", n)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestLinesWhileClosing writes while the handler is closed: every line is written,
// by whomever, and whole.
func TestLinesWhileClosing(t *testing.T) {
	for range 50 {
		var out bytes.Buffer
		h := New(&out, Options{})
		log := slog.New(h)
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for range 50 {
					log.Info("line")
				}
			})
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		callers.Wait()
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "msg=line\n"); n != 200 {
			t.Fatalf("%d lines of 200", n)
		}
	}
}

func BenchmarkLine(b *testing.B) {
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
	r.AddAttrs(slog.String("id", "38ac9d168c309231c28a9a4e8d82a62a"),
		slog.String("outcome", "ok"), slog.Int("status", 200), slog.Duration("duration", 4444349),
		slog.String("model", "mock"), slog.String("placement", "aggregated; reason=short_prompt; worker=http://127.0.0.1:28101"))
	h := New(io.Discard, Options{})
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			e := encoder{b: make([]byte, 0, 512)}
			h.encode(&e, &r)
		}
	})
	b.Run("slog", func(b *testing.B) {
		b.ReportAllocs()
		h := reference(io.Discard, false)
		for b.Loop() {
			_ = h.Handle(context.Background(), r)
		}
	})
}
