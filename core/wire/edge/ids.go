package edge

import "bytes"

// keyIDs begins the list of token ids in a chunk of the engines that can
// continue streams, which write it without spaces. Inside a string its quotes
// would be escaped.
var keyIDs = []byte(`,"token_ids":[`)

// TakeIDs reads the token ids in events, in order, and appends them to ids. With
// cut it also removes the members, in place, and returns what is left of events.
// lists is how many there were. A list that is not one of numbers stays.
func TakeIDs(events []byte, ids []uint32, cut bool) (rest []byte, all []uint32, lists int) {
	rest = events[:0]
	for {
		at := bytes.Index(events, keyIDs)
		if at < 0 {
			break
		}
		more, end := readIDs(events[at+len(keyIDs):], ids)
		if end == 0 {
			rest = append(rest, events[:at+len(keyIDs)]...)
			events = events[at+len(keyIDs):]
			continue
		}
		ids, lists = more, lists+1
		end += at + len(keyIDs)
		if !cut {
			at = end
		}
		rest = append(rest, events[:at]...)
		events = events[end:]
	}
	return append(rest, events...), ids, lists
}

// readIDs reads numbers up to the closing bracket. end is where they end, or 0
// when they are something else.
func readIDs(b []byte, ids []uint32) (all []uint32, end int) {
	n := len(ids)
	var id uint64
	digits := 0
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9' && digits < 10:
			id, digits = 10*id+uint64(c-'0'), digits+1
		case (c == ',' || c == ']') && digits > 0 && id <= 1<<32-1:
			ids = append(ids, uint32(id))
			id, digits = 0, 0
			if c == ']' {
				return ids, i + 1
			}
		case c == ']' && i == 0:
			return ids, 1
		default:
			return ids[:n], 0
		}
	}
	return ids[:n], 0
}
