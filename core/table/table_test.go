package table

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Against a plain map: a table has its rows in order, and no change touches a
// table that was there before.
func TestTableMatchesModel(t *testing.T) {
	keys := rapid.SampledFrom([]string{"", "a", "b", "c", "d", "e"})
	rapid.Check(t, func(t *rapid.T) {
		var now Table[int]
		plain := map[string]int{}
		old, oldRows := now, []Row[int](nil)
		t.Repeat(map[string]func(*rapid.T){
			"with": func(t *rapid.T) {
				k, v := keys.Draw(t, "key"), rapid.Int().Draw(t, "value")
				before := now
				now, plain[k] = now.With(k, v), v
				if now.Same(before) {
					t.Fatal("a change gave the same table")
				}
			},
			"without": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				_, had := plain[k]
				before := now
				now = now.Without(k)
				delete(plain, k)
				if now.Same(before) == had {
					t.Fatalf("removing %q, there before: %v; same: %v", k, had, now.Same(before))
				}
			},
			"edit": func(*rapid.T) {
				now = now.Edit(func(_ string, v int) int { return v / 2 })
				for k, v := range plain {
					plain[k] = v / 2
				}
			},
			"append": func(t *rapid.T) {
				k := keys.Draw(t, "key")
				last := now.Len() == 0 || now.Rows()[now.Len()-1].Key < k
				// Append may write behind the rows of the table it is called on, so
				// that one is not kept.
				next, ok := Table[int]{slices.Clone(now.rows)}.Append(k, 7)
				if ok != last {
					t.Fatalf("Append(%q) behind %v: %v", k, now.Rows(), ok)
				}
				if ok {
					now, plain[k] = next, 7
				}
			},
			"hold": func(*rapid.T) { old, oldRows = now, slices.Clone(now.Rows()) },
			"": func(t *rapid.T) {
				if !slices.Equal(oldRows, old.Rows()) {
					t.Fatal("an old table changed")
				}
				if now.Len() != len(plain) || !slices.IsSortedFunc(now.Rows(), func(a, b Row[int]) int { return cmpKeys(a.Key, b.Key) }) {
					t.Fatalf("rows %v of %v", now.Rows(), plain)
				}
				for k, v := range plain {
					if got, ok := now.Get(k); !ok || got != v {
						t.Fatalf("Get(%q) = %d, %v; want %d", k, got, ok, v)
					}
				}
				if _, ok := now.Get("zz"); ok {
					t.Fatal("found what is not there")
				}
			},
		})
	})
}

func cmpKeys(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func TestZeroTable(t *testing.T) {
	var empty Table[string]
	if empty.Len() != 0 || len(empty.Edit(nil).Rows()) != 0 || !empty.Without("a").Same(empty) {
		t.Error("the zero table is not empty")
	}
	one := empty.With("a", "x")
	if diff := cmp.Diff([]Row[string]{{"a", "x"}}, one.Rows()); diff != "" || empty.Len() != 0 {
		t.Error(diff)
	}
}

func BenchmarkWith(b *testing.B) {
	var t Table[*int]
	for i := range 1024 {
		t = t.With(fmt.Sprintf("%04d", i), new(int))
	}
	b.ReportAllocs()
	for b.Loop() {
		t = t.With("0500", nil)
	}
}
