package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// name is what a row calls its conversation: a string or a number, 0 if it says
// nothing.
type name struct{ hash uint64 }

// UnmarshalJSON implements [json.Unmarshaler].
func (n *name) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	switch {
	case string(b) == "null":
		return nil
	case b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		b = []byte(s)
	case b[0] != '-' && (b[0] < '0' || b[0] > '9'):
		return fmt.Errorf("session is %.20s: a string or a number is needed", b)
	}
	if len(b) > 0 {
		n.hash = xxhash.Sum64(b) | 1
	}
	return nil
}

// mostBranches is how many different blocks may follow one in a conversation, since
// clients try a turn again. What more follow is a prefix that conversations share.
const mostBranches = 2

// converse gives requests without a conversation one: that of the earlier request
// whose whole blocks they go on from, or one of their own.
func converse(requests []Request) {
	shared := sharedBlocks(requests)
	ends := map[uint64]uint64{} // the last whole block of a prompt → its conversation
	for i := range requests {
		r := &requests[i]
		whole := r.whole()
		for k := len(whole) - 1; k >= 0 && r.Session == 0; k-- {
			if !shared[whole[k]] {
				r.Session = ends[whole[k]]
			}
		}
		if r.Session == 0 {
			r.Session = uint64(i+1) << 1 // even: no name's hash is
		}
		if len(whole) > 0 {
			ends[whole[len(whole)-1]] = r.Session
		}
	}
}

// sharedBlocks are the blocks that too many different ones follow.
func sharedBlocks(requests []Request) map[uint64]bool {
	followers := map[uint64][]uint64{} // at most mostBranches of each
	shared := map[uint64]bool{}
	for i := range requests {
		whole := requests[i].whole()
		for k := 1; k < len(whole); k++ {
			before, next := whole[k-1], whole[k]
			known := followers[before]
			switch {
			case shared[before] || slices.Contains(known, next):
			case len(known) == mostBranches:
				shared[before] = true
			default:
				followers[before] = append(known, next)
			}
		}
	}
	return shared
}

// whole is the blocks that the prompt fills. What is in the last one otherwise may
// change when the conversation goes on.
func (r *Request) whole() []uint64 { return r.Blocks[:min(len(r.Blocks), int(r.Input/BlockTokens))] }
