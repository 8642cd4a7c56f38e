package kvevent

import (
	"encoding/binary"
	"fmt"
	"math"
)

// EndOfReplay is the sequence number of the message that ends a replay.
const EndOfReplay uint64 = math.MaxUint64

// Message is one published or replayed message, frames taken apart. Payload and
// Topic share memory with the frames.
type Message struct {
	Topic   []byte
	Seq     uint64
	Payload []byte
}

// IsEnd reports whether the message ends a replay.
func (m Message) IsEnd() bool { return m.Seq == EndOfReplay }

// ParseMessage takes apart the frames of a published message (topic, seq,
// payload) or of a reply to a replay request (the same or without the topic,
// with or without an empty frame before). Errors wrap ErrMalformed.
func ParseMessage(frames [][]byte) (Message, error) {
	n := len(frames)
	if n < 2 || n > 4 {
		return Message{}, fmt.Errorf("%w: %d frames", ErrMalformed, n)
	}
	seq := frames[n-2]
	if len(seq) != 8 {
		return Message{}, fmt.Errorf("%w: sequence number of %d bytes", ErrMalformed, len(seq))
	}
	m := Message{Seq: binary.BigEndian.Uint64(seq), Payload: frames[n-1]}
	if n > 2 {
		m.Topic = frames[n-3]
	}
	return m, nil
}

// Frames is a published message: topic, seq, payload.
func (m Message) Frames() [][]byte {
	return [][]byte{m.Topic, binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload}
}

// Replay is a request, as a DEALER sends it, for the messages from seq on.
func Replay(seq uint64) [][]byte {
	return [][]byte{{}, binary.BigEndian.AppendUint64(nil, seq)}
}

// ParseReplay reads a replay request as a ROUTER receives it, behind the
// sender's identity. Errors wrap ErrMalformed.
func ParseReplay(frames [][]byte) (seq uint64, err error) {
	if n := len(frames); n == 0 || n > 2 || len(frames[n-1]) != 8 {
		return 0, fmt.Errorf("%w: replay request of %d frames", ErrMalformed, n)
	}
	return binary.BigEndian.Uint64(frames[len(frames)-1]), nil
}
