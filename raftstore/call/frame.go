package call

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/transport"
)

// Wire form. Requests go one way and answers the other, in any order, each a frame:
// its length in four bytes, and that many. Numbers are little-endian.
//
//	request   number: 8 bytes
//	          kind: 1 byte
//	          time left, in microseconds: 4 bytes
//	          the caller's cluster: its length in 1 byte, and that many
//	          body: the rest
//	answer    number of the request: 8 bytes
//	          outcome: 1 byte
//	          body, or a sentence: the rest
const (
	requestHead = 8 + 1 + 4 + 1
	answerHead  = 8 + 1
	// maxBody bounds a body, either way; an entry is the largest.
	maxBody  = 4 << 20
	maxFrame = maxBody + requestHead + 255
)

// Kind says what a call is about. The users of the package number them.
type Kind byte

// Outcome says what became of a call that was answered.
type Outcome byte

const (
	// Done means that the body is the answer.
	Done Outcome = iota
	// Busy means that too many calls of the peer's are under way; nothing happened.
	Busy
	// Refused means that the call is not for this node; nothing happened.
	Refused
)

// request is a call as it travels.
type request struct {
	number  uint64
	kind    Kind
	left    time.Duration
	cluster string
	body    []byte
}

var errTooLarge = errors.New("body is too large")

// appendRequest appends a frame.
func appendRequest(b []byte, q request) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(requestHead+len(q.cluster)+len(q.body)))
	b = binary.LittleEndian.AppendUint64(b, q.number)
	b = append(b, byte(q.kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(min(max(q.left, 0), longest)/time.Microsecond))
	b = append(b, byte(len(q.cluster)))
	return append(append(b, q.cluster...), q.body...)
}

// parseRequest reads a request, which keeps the frame.
func parseRequest(frame []byte) (request, error) {
	if len(frame) < requestHead {
		return request{}, fmt.Errorf("%w: a request of %d bytes", transport.ErrFrame, len(frame))
	}
	q := request{
		number: binary.LittleEndian.Uint64(frame),
		kind:   Kind(frame[8]),
		left:   time.Duration(binary.LittleEndian.Uint32(frame[9:])) * time.Microsecond,
	}
	name, rest := int(frame[13]), frame[requestHead:]
	if name > len(rest) || len(rest)-name > maxBody {
		return request{}, fmt.Errorf("%w: a name of %d bytes in %d", transport.ErrFrame, name, len(rest))
	}
	q.left = min(q.left, longest)
	q.cluster, q.body = string(rest[:name]), rest[name:]
	return q, nil
}

// appendAnswer appends a frame.
func appendAnswer(b []byte, number uint64, o Outcome, body []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(answerHead+len(body)))
	b = binary.LittleEndian.AppendUint64(b, number)
	return append(append(b, byte(o)), body...)
}

// parseAnswer reads an answer; the body is the frame's.
func parseAnswer(frame []byte) (number uint64, o Outcome, body []byte, err error) {
	if len(frame) < answerHead || Outcome(frame[8]) > Refused {
		return 0, 0, nil, fmt.Errorf("%w: an answer of %d bytes", transport.ErrFrame, len(frame))
	}
	return binary.LittleEndian.Uint64(frame), Outcome(frame[8]), frame[answerHead:], nil
}
