package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrProtocol means that the peer does not speak ZMTP as we can.
var ErrProtocol = errors.New("zmtp: protocol violation")

// ErrTooLarge means a message beyond the limits of Options.
var ErrTooLarge = errors.New("zmtp: message too large")

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	greetingSize = 64
	maxCommand   = 8 << 10
	firstRead    = 64 << 10 // memory given to a frame before its bytes are seen
)

// greeting is ours: signature, version 3.1, NULL.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[8], g[9] = 0xFF, 1, 0x7F
	g[10], g[11] = 3, 1
	copy(g[12:], "NULL")
	return g
}

// readGreeting checks the peer's greeting and returns its minor version.
func readGreeting(r io.Reader) (minor byte, err error) {
	var g [greetingSize]byte
	// The signature comes first and may be all an old peer sends.
	if _, err := io.ReadFull(r, g[:11]); err != nil {
		return 0, err
	}
	if g[0] != 0xFF || g[9]&1 != 1 {
		return 0, fmt.Errorf("%w: no ZMTP signature", ErrProtocol)
	}
	if g[10] < 3 {
		return 0, fmt.Errorf("%w: peer speaks version %d", ErrProtocol, g[10])
	}
	if _, err := io.ReadFull(r, g[11:]); err != nil {
		return 0, err
	}
	if mechanism := string(bytes.TrimRight(g[12:32], "\x00")); mechanism != "NULL" {
		return 0, fmt.Errorf("%w: peer wants mechanism %q", ErrProtocol, mechanism)
	}
	return g[11], nil
}

// appendFrame writes one frame's header and body.
func appendFrame(dst, body []byte, flags byte) []byte {
	if len(body) > 255 {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// appendMessage writes all frames of a message.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, f, flags)
	}
	return dst
}

// appendCommand writes a command frame.
func appendCommand(dst []byte, name string, data []byte) []byte {
	body := make([]byte, 0, 1+len(name)+len(data))
	body = append(append(append(body, byte(len(name))), name...), data...)
	return appendFrame(dst, body, flagCommand)
}

// appendReady writes READY with our socket type.
func appendReady(dst []byte, socketType string) []byte {
	data := appendProperty(nil, "Socket-Type", socketType)
	if socketType == "DEALER" || socketType == "ROUTER" {
		data = appendProperty(data, "Identity", "")
	}
	return appendCommand(dst, "READY", data)
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = append(append(dst, byte(len(name))), name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// parseReady reads READY's properties and returns the socket type.
func parseReady(data []byte) (socketType string, err error) {
	bad := fmt.Errorf("%w: malformed READY", ErrProtocol)
	for len(data) > 0 {
		n := int(data[0])
		if len(data) < 1+n+4 {
			return "", bad
		}
		name := data[1 : 1+n]
		size := binary.BigEndian.Uint32(data[1+n:])
		data = data[1+n+4:]
		if uint64(size) > uint64(len(data)) {
			return "", bad
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			socketType = string(data[:size])
		}
		data = data[size:]
	}
	if socketType == "" {
		return "", fmt.Errorf("%w: READY without a socket type", ErrProtocol)
	}
	return socketType, nil
}

// parseCommand splits a command's body into name and data.
func parseCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || len(body) < 1+int(body[0]) || body[0] == 0 {
		return "", nil, fmt.Errorf("%w: malformed command", ErrProtocol)
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:], nil
}

// reader takes frames off a connection within limits.
type reader struct {
	r          *bufio.Reader
	maxMessage int
	maxFrames  int
}

// packet is a whole message or one command.
type packet struct {
	command string // empty for a message
	data    []byte
	frames  [][]byte
}

// next reads a whole message or one command.
func (r *reader) next() (packet, error) {
	var p packet
	total := 0
	for {
		flags, size, err := r.header()
		if err != nil {
			return p, err
		}
		if flags&flagCommand != 0 {
			return r.command(flags, size, len(p.frames) > 0)
		}
		if len(p.frames) == r.maxFrames || size > uint64(r.maxMessage-total) {
			return p, fmt.Errorf("%w: frame %d of %d bytes after %d", ErrTooLarge, len(p.frames), size, total)
		}
		total += int(size)
		body, err := r.body(int(size))
		if err != nil {
			return p, err
		}
		p.frames = append(p.frames, body)
		if flags&flagMore == 0 {
			return p, nil
		}
	}
}

func (r *reader) command(flags byte, size uint64, inside bool) (packet, error) {
	if flags&flagMore != 0 || inside {
		return packet{}, fmt.Errorf("%w: command inside a message", ErrProtocol)
	}
	if size > maxCommand {
		return packet{}, fmt.Errorf("%w: command of %d bytes", ErrTooLarge, size)
	}
	body, err := r.body(int(size))
	if err != nil {
		return packet{}, err
	}
	name, data, err := parseCommand(body)
	return packet{command: name, data: data}, err
}

// header reads a frame's flags and size.
func (r *reader) header() (flags byte, size uint64, err error) {
	if flags, err = r.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, fmt.Errorf("%w: frame flags %#x", ErrProtocol, flags)
	}
	if flags&flagLong == 0 {
		short, err := r.r.ReadByte()
		return flags, uint64(short), noEOF(err)
	}
	var long [8]byte
	_, err = io.ReadFull(r.r, long[:])
	return flags, binary.BigEndian.Uint64(long[:]), noEOF(err)
}

// body reads size bytes; memory grows only as they come.
func (r *reader) body(size int) ([]byte, error) {
	b := make([]byte, min(size, firstRead))
	n := 0
	for {
		m, err := io.ReadFull(r.r, b[n:])
		if err != nil {
			return nil, noEOF(err)
		}
		if n += m; n == size {
			return b, nil
		}
		b = append(b, make([]byte, min(len(b), size-len(b)))...)
	}
}

// noEOF makes an end in the middle of a frame an error of its own.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
