package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// Wire form of a stream of entries. The first byte of the connection is
// streamMagic, which no request of the library begins with. Then requests go one
// way and answers the other, each a frame: its length in four bytes, and that many.
// Numbers are little-endian; a text is its length in four bytes and that many.
//
//	request   term, entry before, its term, commit: 8 bytes each
//	          protocol version: 1 byte
//	          id, address: texts
//	          number of entries: 4 bytes, and each:
//	          index, term, time appended (Unix, ns; 0 none): 8 bytes each
//	          type: 1 byte
//	          data, extensions: texts
//	answer    term, last entry: 8 bytes each
//	          flags: 1 byte
//	          error: text
const streamMagic = 0x59

const (
	answerSuccess     = 1 << 0
	answerNoBackoff   = 1 << 1
	knownAnswerFlags  = answerSuccess | answerNoBackoff
	requestHead       = 4*8 + 1 + 4 + 4 + 4
	entryHead         = 3*8 + 1 + 4 + 4
	answerHead        = 2*8 + 1 + 4
	maxAnswerFrame    = 64 << 10
	maxRequestFrame   = 256 << 20
	maxRequestEntries = 1024 // the library's own bound
	// frameStep is how much of a frame is believed to come before it does.
	frameStep = 1 << 20
	// fullRequest is what a request holds before further entries wait for the next.
	fullRequest = 4 << 20
)

// ErrFrame means that what came is no frame of the protocol that was agreed on.
var ErrFrame = errors.New("malformed frame")

// appendRequest appends a frame. Entries beyond fullRequest are left out, and of
// the request too.
func appendRequest(b []byte, q *raft.AppendEntriesRequest) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	for _, n := range [...]uint64{q.Term, q.PrevLogEntry, q.PrevLogTerm, q.LeaderCommitIndex} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	b = append(b, byte(q.ProtocolVersion))
	b = appendText(appendText(b, q.ID), q.Addr)
	count := len(b)
	b = append(b, 0, 0, 0, 0)
	for i, l := range q.Entries {
		if i > 0 && len(b)-start+entryHead+len(l.Data)+len(l.Extensions) > fullRequest {
			q.Entries = q.Entries[:i]
			break
		}
		b = appendEntry(b, l)
	}
	binary.LittleEndian.PutUint32(b[count:], uint32(len(q.Entries)))
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

func appendEntry(b []byte, l *raft.Log) []byte {
	at := int64(0)
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = binary.LittleEndian.AppendUint64(b, l.Index)
	b = binary.LittleEndian.AppendUint64(b, l.Term)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = append(b, byte(l.Type))
	return appendText(appendText(b, l.Data), l.Extensions)
}

func appendText[T ~[]byte | ~string](b []byte, text T) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(text))), text...)
}

// appendAnswer appends a frame.
func appendAnswer(b []byte, a *raft.AppendEntriesResponse, err error) []byte {
	flags, text := byte(0), ""
	if a.Success {
		flags |= answerSuccess
	}
	if a.NoRetryBackoff {
		flags |= answerNoBackoff
	}
	if err != nil {
		text = err.Error()
		text = text[:min(len(text), maxAnswerFrame/2)]
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(answerHead+len(text)))
	b = binary.LittleEndian.AppendUint64(b, a.Term)
	b = binary.LittleEndian.AppendUint64(b, a.LastLog)
	return appendText(append(b, flags), text)
}

// ReadFrame reads a frame, its length in four bytes, little-endian, and that many,
// of at most limit. What it returns is the caller's. Memory is taken as bytes come,
// not as they are promised. Errors are ErrFrame or the reader's; what follows
// cannot be understood after one.
func ReadFrame(r io.Reader, limit uint32) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size > limit {
		return nil, fmt.Errorf("%w: %d bytes", ErrFrame, size)
	}
	b := make([]byte, 0, min(size, frameStep))
	for len(b) < int(size) {
		if len(b) == cap(b) {
			grown := make([]byte, len(b), min(int(size), 2*cap(b)))
			copy(grown, b)
			b = grown
		}
		n, err := io.ReadFull(r, b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// parseRequest reads a request, which keeps the frame.
func parseRequest(frame []byte) (*raft.AppendEntriesRequest, error) {
	p := parser{rest: frame}
	q := &raft.AppendEntriesRequest{Term: p.number(), PrevLogEntry: p.number(), PrevLogTerm: p.number(), LeaderCommitIndex: p.number()}
	q.ProtocolVersion = raft.ProtocolVersion(p.byte())
	q.ID, q.Addr = p.text(), p.text()
	count := p.length()
	if count > maxRequestEntries || count > len(p.rest)/entryHead {
		return nil, ErrFrame
	}
	if count > 0 {
		logs := make([]raft.Log, count)
		q.Entries = make([]*raft.Log, count)
		for i := range logs {
			p.entry(&logs[i])
			q.Entries[i] = &logs[i]
		}
	}
	return q, p.end()
}

// parseAnswer reads an answer and the error that came with it.
func parseAnswer(frame []byte, a *raft.AppendEntriesResponse) (said, err error) {
	p := parser{rest: frame}
	a.Term, a.LastLog = p.number(), p.number()
	flags := p.byte()
	text := p.text()
	if flags&^knownAnswerFlags != 0 {
		return nil, ErrFrame
	}
	a.Success, a.NoRetryBackoff = flags&answerSuccess != 0, flags&answerNoBackoff != 0
	if len(text) > 0 {
		said = errors.New(string(text))
	}
	return said, p.end()
}

// parser takes values off a frame; the first that is not there spoils all.
type parser struct {
	rest  []byte
	short bool
}

func (p *parser) take(n int) []byte {
	if n > len(p.rest) {
		p.rest, p.short = nil, true
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) number() uint64 {
	if b := p.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (p *parser) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (p *parser) length() int {
	if b := p.take(4); b != nil {
		return int(binary.LittleEndian.Uint32(b))
	}
	return 0
}

// text is nil when it is empty.
func (p *parser) text() []byte {
	if n := p.length(); n > 0 {
		return p.take(n)
	}
	return nil
}

func (p *parser) entry(l *raft.Log) {
	l.Index, l.Term = p.number(), p.number()
	if at := p.number(); at != 0 {
		l.AppendedAt = time.Unix(0, int64(at))
	}
	l.Type = raft.LogType(p.byte())
	l.Data, l.Extensions = p.text(), p.text()
}

func (p *parser) end() error {
	if p.short || len(p.rest) > 0 {
		return ErrFrame
	}
	return nil
}
