package h1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// body is a request's body of known length. Of a chunked one only left is used.
type body struct {
	c    *conn
	left int64 // not read yet; -1 while the end of a chunked body is to come
	// failed says that the connection gave an error, e.g. for the deadline.
	failed bool
}

// Read takes what came with the head, then reads the connection.
func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.c.take(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); b.left == 0 {
		return n, io.EOF
	}
	return n, err
}

// Close has nothing to do: what is left is dealt with after the response.
func (b *body) Close() error { return nil }

// take reads what has been read of the connection before, else the connection. A
// body has not ended when the connection has.
func (c *conn) take(p []byte) (int, error) {
	if c.from < c.to {
		n := copy(p, (*c.buf)[c.from:c.to])
		c.consume(n)
		return n, nil
	}
	return c.receive(p)
}

// receive reads the connection for a body. It returns bytes or an error.
func (c *conn) receive(p []byte) (int, error) {
	if !c.waiting {
		c.waiting = true
		_ = c.raw.SetReadDeadline(c.wait)
	}
	n, err := c.raw.Read(p)
	c.request.body.failed = err != nil
	return n, noEOF(err)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// errChunk means that a chunked body is malformed.
var errChunk = errors.New("h1: malformed chunk")

const (
	maxChunkLine = 1 << 10 // of a chunk's size with its extensions, and of a trailer's line
	maxTrailer   = 8 << 10 // of all the trailer's lines
)

// chunks reads a chunked body. It takes no line that does not end in CRLF, and
// throws extensions and trailers away.
type chunks struct {
	body  *body
	left  int64 // of the present chunk
	began bool  // there was a chunk, whose CRLF is to come
	err   error // which stays
}

// Read reads from one chunk.
func (k *chunks) Read(p []byte) (int, error) {
	if k.err == nil && k.left == 0 && len(p) > 0 {
		k.err = k.next()
	}
	if k.err != nil || len(p) == 0 {
		return 0, k.err
	}
	n, err := k.body.c.take(p[:min(int64(len(p)), k.left)])
	k.left -= int64(n)
	k.err = err
	return n, err
}

// Close has nothing to do, see body.
func (k *chunks) Close() error { return nil }

// next begins a chunk. After the last one it returns io.EOF.
func (k *chunks) next() error {
	c := k.body.c
	if k.began {
		if end, err := c.line(); err != nil || end != "" {
			return errors.Join(err, fmt.Errorf("%w: it is longer than it says", errChunk))
		}
	}
	k.began = true
	line, err := c.line()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	size = strings.TrimRight(size, " \t")
	n, err := strconv.ParseUint(size, 16, 62)
	if err != nil || strings.ContainsAny(size, "+_") {
		return fmt.Errorf("%w: its size is no number", errChunk)
	}
	if k.left = int64(n); n > 0 {
		return nil
	}
	for total := 0; total <= maxTrailer; total += len(line) {
		if line, err = c.line(); err != nil {
			return err
		}
		if line == "" {
			k.body.left = 0
			return io.EOF
		}
		if _, _, ok := field([]byte(line)); !ok {
			break
		}
	}
	return fmt.Errorf("%w: the trailer is malformed or too long", errChunk)
}

// line reads a line of a chunked body, without its CRLF.
func (c *conn) line() (string, error) {
	for {
		if c.buf != nil {
			b := (*c.buf)[c.from:c.to]
			n := bytes.IndexByte(b[:min(len(b), maxChunkLine)], '\n')
			if n >= 0 {
				text, ok := strings.CutSuffix(string(b[:n]), "\r")
				if c.consume(n + 1); !ok || strings.ContainsAny(text, "\r\x00") {
					return "", fmt.Errorf("%w: a line does not end in CRLF", errChunk)
				}
				return text, nil
			}
			if len(b) >= maxChunkLine {
				return "", fmt.Errorf("%w: a line is too long", errChunk)
			}
		}
		c.room()
		n, err := c.receive((*c.buf)[c.to:])
		if n == 0 {
			return "", err
		}
		c.to += n
	}
}
