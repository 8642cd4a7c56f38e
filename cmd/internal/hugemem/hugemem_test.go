package hugemem

import "testing"

func TestWords(t *testing.T) {
	var a Allocator
	seen := map[*uint64]bool{}
	for _, n := range []int{1, 1 << 15, 1 << 20, 1 << 21, region/8 + 1, region / 8} {
		w := a.Words(n)
		if len(w) != n || cap(w) < n || w[0] != 0 || w[n-1] != 0 {
			t.Fatalf("%d words: %d", n, len(w))
		}
		w[0], w[n-1] = 1, 1
		if seen[&w[0]] {
			t.Fatal("a piece was handed out twice")
		}
		seen[&w[0]] = true
	}
}
