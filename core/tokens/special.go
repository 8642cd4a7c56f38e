package tokens

// specials finds special tokens in text: a trie over their bytes.
type specials struct {
	first [256]bool // bytes that begin one
	nodes []trieNode
	any   bool
}

type trieNode struct {
	edges map[byte]int32
	id    int32 // the token that ends here, or None
}

func newSpecials() *specials { return &specials{nodes: []trieNode{{id: None}}} }

func (s *specials) add(text string, id int32) {
	if text == "" {
		return
	}
	s.any = true
	s.first[text[0]] = true
	at := int32(0)
	for i := range len(text) {
		next, ok := s.nodes[at].edges[text[i]]
		if !ok {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, trieNode{id: None})
			if s.nodes[at].edges == nil {
				s.nodes[at].edges = map[byte]int32{}
			}
			s.nodes[at].edges[text[i]] = next
		}
		at = next
	}
	if s.nodes[at].id == None {
		s.nodes[at].id = id
	}
}

// find is the leftmost special token in text, the longest one there: where it
// begins and ends, and its id. Without one, id is None and start is len(text).
func (s *specials) find(text string) (start, end int, id int32) {
	if !s.any {
		return len(text), len(text), None
	}
	for i := range len(text) {
		if !s.first[text[i]] {
			continue
		}
		at, id := int32(0), None
		for j := i; j < len(text); j++ {
			next, ok := s.nodes[at].edges[text[j]]
			if !ok {
				break
			}
			at = next
			if s.nodes[at].id != None {
				end, id = j+1, s.nodes[at].id
			}
		}
		if id != None {
			return i, end, id
		}
	}
	return len(text), len(text), None
}
