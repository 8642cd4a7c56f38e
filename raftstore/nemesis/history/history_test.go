package history

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func check(t *testing.T, l *Log) error {
	t.Helper()
	return l.Check(10 * time.Second)
}

// wrote, read and the like note operations one after the other.
func (l *Log) wrote(value string, version uint64) {
	l.Begin(1).Register("k", RegisterOp{Kind: Write, Value: value}, RegisterAnswer{Version: version})
}

func (l *Log) read(value string, version uint64) {
	l.Begin(2).Register("k", RegisterOp{}, RegisterAnswer{Exists: version > 0, Value: value, Version: version})
}

func (l *Log) doubted(op RegisterOp) { l.Begin(3).Register("k", op, RegisterAnswer{Unknown: true}) }

func (l *Log) swapped(want uint64, value string, version uint64) {
	l.Begin(4).Register("k", RegisterOp{Kind: Swap, Want: want, Value: value}, RegisterAnswer{Version: version})
}

func (l *Log) clashed(want, with uint64) {
	l.Begin(4).Register("k", RegisterOp{Kind: Swap, Want: want, Value: "never"}, RegisterAnswer{Version: with, Conflict: true})
}

func TestRegisters(t *testing.T) {
	tests := []struct {
		name string
		note func(*Log)
		ok   bool
	}{
		{"a read sees the last write", func(l *Log) { l.wrote("a", 5); l.read("a", 5); l.wrote("b", 7); l.read("b", 7) }, true},
		{"a stale read", func(l *Log) { l.wrote("a", 5); l.wrote("b", 7); l.read("a", 5) }, false},
		{"an acknowledged write is lost", func(l *Log) { l.wrote("a", 5); l.read("", 0) }, false},
		{"a version goes back", func(l *Log) { l.wrote("a", 5); l.wrote("b", 4) }, false},
		{"another version than was acknowledged", func(l *Log) { l.wrote("a", 5); l.read("a", 6) }, false},
		{"a write in doubt takes effect", func(l *Log) { l.wrote("a", 5); l.doubted(RegisterOp{Kind: Write, Value: "b"}); l.read("b", 8) }, true},
		{"a write in doubt takes effect late", func(l *Log) {
			l.doubted(RegisterOp{Kind: Write, Value: "b"})
			l.wrote("a", 5)
			l.read("a", 5)
			l.read("b", 8)
		}, true},
		{"a write in doubt takes effect twice", func(l *Log) {
			l.doubted(RegisterOp{Kind: Write, Value: "b"})
			l.read("b", 4)
			l.wrote("a", 5)
			l.read("b", 8)
		}, false},
		{"a write in doubt is seen through a conflict", func(l *Log) {
			l.wrote("a", 5)
			l.doubted(RegisterOp{Kind: Write, Value: "b"})
			l.clashed(5, 8)
			l.read("b", 8)
		}, true},
		{"a conflict with what never was", func(l *Log) { l.wrote("a", 5); l.clashed(5, 8) }, false},
		{"what was refused takes effect", func(l *Log) { l.wrote("a", 5); l.read("b", 8) }, false},
		{"a swap", func(l *Log) { l.swapped(0, "a", 3); l.swapped(3, "b", 4); l.clashed(3, 4); l.read("b", 4) }, true},
		{"two swaps of one version", func(l *Log) { l.wrote("a", 3); l.swapped(3, "b", 4); l.swapped(3, "c", 5) }, false},
		{"a swap in doubt whose version is gone", func(l *Log) {
			l.wrote("a", 3)
			l.wrote("b", 4)
			l.doubted(RegisterOp{Kind: Swap, Want: 3, Value: "c"})
			l.read("c", 5)
		}, false},
		{"a swap in doubt upon a write in doubt", func(l *Log) {
			l.wrote("a", 3)
			l.doubted(RegisterOp{Kind: Write, Value: "b"})
			l.doubted(RegisterOp{Kind: Swap, Want: 4, Value: "c"})
			l.read("c", 5)
		}, true},
		{"a deletion", func(l *Log) {
			l.wrote("a", 3)
			l.Begin(1).Register("k", RegisterOp{Kind: Delete}, RegisterAnswer{})
			l.read("", 0)
			l.clashed(3, 0)
			l.swapped(0, "b", 6)
		}, true},
		{"a deletion in doubt", func(l *Log) { l.wrote("a", 3); l.doubted(RegisterOp{Kind: Delete}); l.read("a", 3); l.read("", 0) }, true},
		{"overlapping writes, either order", func(l *Log) {
			one, two := l.Begin(1), l.Begin(2)
			two.Register("k", RegisterOp{Kind: Write, Value: "b"}, RegisterAnswer{Version: 4})
			one.Register("k", RegisterOp{Kind: Write, Value: "a"}, RegisterAnswer{Version: 3})
			l.read("b", 4)
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var l Log
			tt.note(&l)
			if err := check(t, &l); (err == nil) != tt.ok || (!tt.ok && !errors.Is(err, ErrIllegal)) {
				t.Errorf("Check = %v", err)
			}
		})
	}
}

func (l *Log) granted(holder int, window uint64, asked, got int64) {
	l.Begin(1).Quota("t", QuotaOp{Kind: Grant, Holder: holder, Window: window, Tokens: asked}, QuotaAnswer{Tokens: got})
}

// limited notes a limit of 10.
func (l *Log) limited() {
	l.Begin(1).Quota("t", QuotaOp{Kind: SetLimit, Tokens: 10}, QuotaAnswer{})
}

func TestQuotas(t *testing.T) {
	tests := []struct {
		name string
		note func(*Log)
		ok   bool
	}{
		{"no more than the limit", func(l *Log) { l.limited(); l.granted(0, 1, 7, 7); l.granted(1, 1, 7, 3); l.granted(2, 1, 7, 0) }, true},
		{"more than the limit", func(l *Log) { l.limited(); l.granted(0, 1, 7, 7); l.granted(1, 1, 7, 7) }, false},
		{"less than was left", func(l *Log) { l.limited(); l.granted(0, 1, 7, 2) }, false},
		{"a window begins anew", func(l *Log) { l.limited(); l.granted(0, 1, 10, 10); l.granted(0, 2, 10, 10) }, true},
		{"a grant in doubt may have been", func(l *Log) {
			l.limited()
			l.Begin(1).Quota("t", QuotaOp{Kind: Grant, Window: 1, Tokens: 6}, QuotaAnswer{Unknown: true})
			l.granted(1, 1, 10, 4)
		}, true},
		{"or not", func(l *Log) {
			l.limited()
			l.Begin(1).Quota("t", QuotaOp{Kind: Grant, Window: 1, Tokens: 6}, QuotaAnswer{Unknown: true})
			l.granted(1, 1, 10, 10)
		}, true},
		{"but not in part", func(l *Log) {
			l.limited()
			l.Begin(1).Quota("t", QuotaOp{Kind: Grant, Window: 1, Tokens: 6}, QuotaAnswer{Unknown: true})
			l.granted(1, 1, 10, 7)
		}, false},
		{"returned and granted again", func(l *Log) {
			l.limited()
			l.granted(0, 1, 10, 10)
			l.Begin(1).Quota("t", QuotaOp{Kind: Return, Window: 1, Tokens: 4}, QuotaAnswer{Tokens: 4})
			l.granted(1, 1, 10, 4)
		}, true},
		{"a late window", func(l *Log) {
			l.limited()
			l.granted(0, 2, 1, 1)
			l.Begin(1).Quota("t", QuotaOp{Kind: Grant, Window: 1, Tokens: 1}, QuotaAnswer{Stale: true})
		}, true},
		{"no quota", func(l *Log) {
			l.Begin(1).Quota("t", QuotaOp{Kind: Grant, Window: 1, Tokens: 1}, QuotaAnswer{Missing: true})
		}, true},
		{"a read", func(l *Log) {
			l.limited()
			l.granted(3, 1, 4, 4)
			got := QuotaAnswer{Window: 1}
			got.Grants[3] = 4
			l.Begin(2).Quota("t", QuotaOp{Kind: ReadQuota}, got)
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var l Log
			tt.note(&l)
			if err := check(t, &l); (err == nil) != tt.ok || (!tt.ok && !errors.Is(err, ErrIllegal)) {
				t.Errorf("Check = %v", err)
			}
		})
	}
}

// A register that does one thing after the other is always found to be one,
// whatever of its answers is withheld, and a stale read is always found.
func TestHonestRegisterIsLinearizable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Log
		var r register
		var history []register
		version := uint64(0)
		n := rapid.IntRange(1, 25).Draw(t, "operations")
		for i := range n {
			version += rapid.Uint64Range(1, 3).Draw(t, "entries")
			op := RegisterOp{Kind: rapid.SampledFrom([]RegisterKind{Read, Write, Swap, Delete}).Draw(t, "kind"), Value: strconv.Itoa(i)}
			got := RegisterAnswer{}
			call := l.Begin(i)
			switch op.Kind {
			case Read:
				got = RegisterAnswer{Exists: r.exists, Value: r.value, Version: r.version}
			case Write:
				r, got.Version = register{exists: true, value: op.Value, version: version}, version
			case Swap:
				op.Want = rapid.SampledFrom([]uint64{0, r.version, 1}).Draw(t, "want")
				if op.Want != r.version {
					got = RegisterAnswer{Conflict: true, Version: r.version}
					break
				}
				r, got.Version = register{exists: true, value: op.Value, version: version}, version
			case Delete:
				r = register{}
			}
			history = append(history, r)
			if op.Kind != Read && rapid.IntRange(0, 4).Draw(t, "withheld") == 0 {
				got = RegisterAnswer{Unknown: true}
			}
			call.Register("k", op, got)
		}
		if err := l.Check(time.Minute); err != nil {
			t.Fatal(err)
		}
		// What was there before a write that was acknowledged cannot be read again.
		l.wrote("last", version+1)
		for _, old := range history {
			if old.exists {
				l.read(old.value, old.version)
				if err := l.Check(time.Minute); !errors.Is(err, ErrIllegal) {
					t.Fatalf("a stale read of %+v: %v", old, err)
				}
				break
			}
		}
	})
}
