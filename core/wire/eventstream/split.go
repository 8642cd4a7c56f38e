package eventstream

import "bytes"

// splitter finds where events end. It remembers how far it has looked, so that
// a long event which arrives in small pieces is scanned once.
type splitter struct {
	lead int  // 1 when the event begins with the LF of the last one's CRLF
	pos  int  // scanned bytes of the current event
	line int  // where its current line begins
	late bool // past the stream's first line: no byte order mark any more
	cr   bool // the byte before pos is a CR that ended a line: an LF here belongs to it
}

// next returns the length of the first whole event of buf, terminator included.
// buf begins where the last event ended. It returns 0 when the event is not
// whole yet; then the next call passes the same bytes and more.
//
// A CR at the very end of buf ends its line at once: waiting for a possible LF
// would hold a finished event back. The LF, when it comes, is the first byte of
// what next returns later; lead says so.
func (s *splitter) next(buf []byte) int {
	for s.pos < len(buf) {
		if s.cr {
			s.cr = false
			if buf[s.pos] == '\n' {
				if s.pos == 0 {
					s.lead = 1
				}
				s.pos++
				s.line = s.pos
				continue
			}
		}
		end, found := lineEnd(buf[s.pos:])
		s.pos += end
		if !found {
			return 0
		}
		blank := s.pos == s.line || (!s.late && string(buf[s.line:s.pos]) == bom)
		s.late = true
		s.cr = buf[s.pos] == '\r'
		s.pos++
		s.line = s.pos
		if !blank {
			continue
		}
		if s.cr && s.pos < len(buf) && buf[s.pos] == '\n' {
			s.pos++
			s.cr = false
		}
		return s.pos
	}
	return 0
}

const bom = "\xef\xbb\xbf"

// advance begins the next event. It returns the lead of the last one.
func (s *splitter) advance() (lead int) {
	lead = s.lead
	s.lead, s.pos, s.line = 0, 0, 0
	return lead
}

// lineEnd is the index of the first CR or LF in b, or len(b) and false.
func lineEnd(b []byte) (int, bool) {
	n := len(b)
	lf := bytes.IndexByte(b, '\n')
	if lf >= 0 {
		n = lf
	}
	if cr := bytes.IndexByte(b[:n], '\r'); cr >= 0 {
		return cr, true
	}
	return n, lf >= 0
}
