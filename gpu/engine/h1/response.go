package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// ErrProtocol means that the peer's bytes are not HTTP/1.1 as this package
// accepts it.
var ErrProtocol = errors.New("malformed HTTP response")

const (
	maxHead    = 64 << 10 // bytes of a response's head, and of a chunked body's trailer
	maxInterim = 8        // 1xx responses before the real one
	maxLine    = 4 << 10  // of a chunk-size line
)

// Response is an answer whose body is still to be read. Read and Close belong to
// one goroutine.
type Response struct {
	Status int

	head     []byte // the header lines
	conn     *conn
	ctx      context.Context //nolint:containedctx // the life of the call this response belongs to
	stop     func() bool
	interim  int
	line     []byte // scratch for chunk sizes
	framing  framing
	left     int64 // bytes of the body, or of the present chunk, not read yet
	inChunk  bool
	keep     bool // the connection can serve another call
	finished error
}

type framing uint8

const (
	untilClose framing = iota
	byLength
	chunked
)

// Header is the value of the first header line of that name, "" when absent.
func (r *Response) Header(name string) string {
	rest := r.head
	for len(rest) > 0 {
		line, more, _ := bytes.Cut(rest, crlf)
		rest = more
		key, value, _ := bytes.Cut(line, colon)
		if len(key) == len(name) && bytes.EqualFold(key, []byte(name)) {
			return string(bytes.Trim(value, " \t"))
		}
	}
	return ""
}

var (
	crlf  = []byte("\r\n")
	colon = []byte(":")
)

// Length is the length of the body as stated; 0 when it is not, or when some of
// it was read.
func (r *Response) Length() int64 {
	if r.framing != byLength {
		return 0
	}
	return r.left
}

// readHead reads one head, of the response or of an interim one.
func (r *Response) readHead(cn *conn) error {
	if r.interim++; r.interim > maxInterim {
		return fmt.Errorf("%w: more than %d interim responses", ErrProtocol, maxInterim)
	}
	if _, err := cn.in.Peek(1); err != nil {
		return err
	}
	cn.silent = false
	status, err := readLine(cn.in, nil, maxHead)
	if err != nil {
		return err
	}
	if err := r.parseStatus(status); err != nil {
		return err
	}
	r.head = r.head[:0]
	for {
		at := len(r.head)
		if r.head, err = readLine(cn.in, r.head, maxHead); err != nil {
			return err
		}
		if len(r.head) == at {
			break
		}
		if err := checkField(r.head[at:]); err != nil {
			return err
		}
		r.head = append(r.head, crlf...)
	}
	return r.frame()
}

// parseStatus reads "HTTP/1.1 200 OK".
func (r *Response) parseStatus(line []byte) error {
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' {
		return fmt.Errorf("%w: status line of %d bytes", ErrProtocol, len(line))
	}
	code, err := strconv.ParseUint(string(line[9:12]), 10, 16)
	if err != nil || code < 100 || len(line) > 12 && line[12] != ' ' {
		return fmt.Errorf("%w: status line of %d bytes", ErrProtocol, len(line))
	}
	r.Status = int(code)
	r.keep = line[7] == '1'
	return nil
}

func checkField(line []byte) error {
	colonAt := bytes.IndexByte(line, ':')
	if colonAt < 1 || line[0] == ' ' || line[0] == '\t' || bytes.ContainsAny(line[:colonAt], " \t") {
		return fmt.Errorf("%w: header line of %d bytes", ErrProtocol, len(line))
	}
	return nil
}

// frame decides how the body ends. A response with both lengths is refused: the
// two sides might read it differently.
func (r *Response) frame() error {
	if r.Status < 200 || r.Status == 204 || r.Status == 304 {
		r.framing, r.left = byLength, 0
		return nil
	}
	length, encoding := r.Header("Content-Length"), r.Header("Transfer-Encoding")
	switch {
	case encoding != "" && length != "":
		return fmt.Errorf("%w: Content-Length beside Transfer-Encoding", ErrProtocol)
	case encoding != "":
		if !bytes.EqualFold([]byte(encoding), []byte("chunked")) {
			return fmt.Errorf("%w: transfer encoding of %d bytes", ErrProtocol, len(encoding))
		}
		r.framing = chunked
	case length != "":
		n, err := strconv.ParseUint(length, 10, 63)
		if err != nil {
			return fmt.Errorf("%w: content length of %d bytes", ErrProtocol, len(length))
		}
		r.framing, r.left = byLength, int64(n)
	default:
		r.framing, r.keep = untilClose, false
	}
	if connection := r.Header("Connection"); bytes.EqualFold([]byte(connection), []byte("close")) {
		r.keep = false
	}
	return nil
}

// Read reads the body. io.EOF means that it ended as its framing said; an end by
// closing the connection counts only where there is no other framing. Other
// errors wrap the context's error or engine.ErrBroken.
func (r *Response) Read(p []byte) (int, error) {
	if r.finished != nil {
		return 0, r.finished
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF) && (r.done() || r.framing == untilClose && r.ctx.Err() == nil):
		r.finish(io.EOF)
		err = io.EOF
	default:
		r.keep = false
		err = broken(r.ctx, err)
		r.finish(err)
	}
	return n, err
}

// done reports whether the framing says that the body is over.
func (r *Response) done() bool { return r.framing != untilClose && r.left == 0 && !r.inChunk }

func (r *Response) read(p []byte) (int, error) {
	switch r.framing {
	case byLength:
		if r.left == 0 {
			return 0, io.EOF
		}
		n, err := r.conn.in.Read(p[:min(int64(len(p)), r.left)])
		if r.left -= int64(n); r.left == 0 {
			err = nil // the next call says io.EOF
		}
		return n, err
	case chunked:
		return r.readChunks(p)
	case untilClose:
	}
	return r.conn.in.Read(p)
}

// readChunks reads what has come of one chunk and of those after it, so that
// events which arrived together leave together. It waits for the first only.
func (r *Response) readChunks(p []byte) (total int, err error) {
	for {
		if r.left == 0 {
			if total > 0 && !r.nextIsHere() {
				return total, nil
			}
			if err := r.nextChunk(); err != nil {
				return total, err
			}
		}
		n, err := r.conn.in.Read(p[total:min(int64(len(p)), int64(total)+r.left)])
		total += n
		r.left -= int64(n)
		if err != nil || total == len(p) || r.conn.in.Buffered() == 0 {
			return total, err
		}
	}
}

// nextIsHere reports whether nextChunk would not have to wait.
func (r *Response) nextIsHere() bool {
	b, _ := r.conn.in.Peek(r.conn.in.Buffered())
	b, ok := bytes.CutPrefix(b, crlf)
	if !ok || len(b) == 0 || bytes.IndexByte(b, '\n') < 0 {
		return false
	}
	return b[0] != '0' || bytes.HasPrefix(b, []byte("0\r\n\r\n"))
}

// nextChunk reads a chunk's size line, and after the last chunk the trailer,
// where it returns io.EOF.
func (r *Response) nextChunk() error {
	if r.inChunk { // the CRLF after the chunk before
		line, err := readLine(r.conn.in, r.line[:0], maxLine)
		if err != nil {
			return noEOF(err)
		}
		if len(line) != 0 {
			return fmt.Errorf("%w: chunk longer than its size", ErrProtocol)
		}
	}
	r.inChunk = true
	line, err := readLine(r.conn.in, r.line[:0], maxLine)
	if err != nil {
		return noEOF(err)
	}
	r.line = line
	size, _, _ := bytes.Cut(line, []byte(";"))
	if r.left, err = parseHex(bytes.Trim(size, " \t")); err != nil {
		return err
	}
	if r.left > 0 {
		return nil
	}
	for total := 0; ; total += len(line) {
		if line, err = readLine(r.conn.in, nil, maxLine); err != nil {
			return noEOF(err)
		}
		if len(line) == 0 {
			r.inChunk = false
			return io.EOF
		}
		if total > maxHead {
			return fmt.Errorf("%w: trailer over %d bytes", ErrProtocol, maxHead)
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func parseHex(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 15 {
		return 0, fmt.Errorf("%w: chunk size of %d bytes", ErrProtocol, len(b))
	}
	var n int64
	for _, c := range b {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | int64(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return 0, fmt.Errorf("%w: chunk size of %d bytes", ErrProtocol, len(b))
		}
	}
	return n, nil
}

// finish ends the call: the connection goes back or is closed.
func (r *Response) finish(err error) {
	r.finished = err
	if !r.stop() { // the context's alarm has set, or may yet set, the deadline
		r.keep = false
	}
	if r.keep && errors.Is(err, io.EOF) && r.conn.in.Buffered() == 0 {
		r.conn.client.give(r.conn)
		return
	}
	r.conn.close()
}

// Buffered is how many bytes of the body the next Read can return without
// waiting. A relay that has none left to read flushes.
func (r *Response) Buffered() int {
	if r.over() {
		return 0
	}
	return r.conn.in.Buffered()
}

func (r *Response) over() bool { return r.finished != nil }

// Close ends the call. A body not read to its end costs the connection, which
// tells the engine to stop.
func (r *Response) Close() error {
	switch {
	case r.over():
	case r.done() && r.framing == byLength:
		r.finish(io.EOF)
	default:
		r.keep = false
		r.finish(errClosed)
	}
	return nil
}

var errClosed = errors.New("h1: response closed")

// lineReader is the part of bufio.Reader that readLine needs.
type lineReader interface {
	ReadSlice(delim byte) ([]byte, error)
}

// readLine appends a line without its CRLF or LF to dst. limit bounds the whole
// of dst.
func readLine(in lineReader, dst []byte, limit int) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(dst)+len(part) > limit {
			return dst, fmt.Errorf("%w: over %d bytes", ErrProtocol, limit)
		}
		dst = append(dst, part...)
		switch {
		case err == nil:
			dst = dst[:len(dst)-1]
			if n := len(dst); len(part) > 0 && n > 0 && dst[n-1] == '\r' {
				dst = dst[:n-1]
			}
			return dst, nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return dst, noEOF(err)
		}
	}
}
