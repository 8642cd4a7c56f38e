package section

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var (
	// ErrMalformed means bytes that are not what they claim to be.
	ErrMalformed = errors.New("section: malformed")
	// ErrFormat means a magic of another number; it wraps ErrMalformed too.
	ErrFormat = errors.New("section: another format")
)

// Ignorable is the bit of a type that lets readers skip what they do not know.
const Ignorable = 0x80

// Max is the longest payload in bytes.
const Max = 16 << 20

const header = 6

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes sections until the first error, which it keeps.
type Writer struct {
	w       io.Writer
	buf     []byte
	written int64
	count   uint64
	err     error
}

// NewWriter begins with the magic.
func NewWriter(w io.Writer, magic string) *Writer {
	out := &Writer{w: w}
	out.write([]byte(magic))
	return out
}

// Write writes one section, whose payload append appends to its argument.
func (s *Writer) Write(kind, version byte, appendPayload func([]byte) []byte) {
	if s.err != nil {
		return
	}
	s.buf = appendPayload(append(s.buf[:0], kind, version, 0, 0, 0, 0))
	n := len(s.buf) - header
	if n > Max {
		s.err = fmt.Errorf("section %d of %d bytes is over the limit", kind, n)
		return
	}
	binary.LittleEndian.PutUint32(s.buf[2:], uint32(n))
	s.buf = binary.LittleEndian.AppendUint32(s.buf, crc32.Checksum(s.buf, castagnoli))
	s.write(s.buf)
	s.count++
}

// Count is the number of sections written.
func (s *Writer) Count() uint64 { return s.count }

// Result is the bytes written and the first error.
func (s *Writer) Result() (int64, error) { return s.written, s.err }

// Err is what went wrong. Nothing is asked for any more then: whoever goes on until
// all has been asked for stops.
func (s *Writer) Err() error { return s.err }

func (s *Writer) write(b []byte) {
	if s.err != nil {
		return
	}
	n, err := s.w.Write(b)
	s.written += int64(n)
	s.err = err
}

// Reader reads sections.
type Reader struct {
	r     io.Reader
	buf   bytes.Buffer
	count uint64
}

// NewReader reads the magic, whose last byte but one is the format's number.
// Errors wrap ErrMalformed, and ErrFormat where only the number is another.
func NewReader(r io.Reader, magic string) (*Reader, error) {
	got := make([]byte, len(magic))
	if _, err := io.ReadFull(r, got); err != nil {
		return nil, fmt.Errorf("%w: the beginning: %w", ErrMalformed, err)
	}
	if number := max(len(magic)-2, 0); string(got) != magic {
		if number > 0 && string(got[:number]) == magic[:number] {
			return nil, fmt.Errorf("%w: %w: %d, not %d", ErrMalformed, ErrFormat, got[number], magic[number])
		}
		return nil, fmt.Errorf("%w: begins with %q, not %q", ErrMalformed, got, magic)
	}
	return &Reader{r: r}, nil
}

// Next reads one section and checks it. The payload is valid until the next
// call. Errors wrap ErrMalformed.
func (s *Reader) Next() (kind, version byte, payload []byte, err error) {
	var head [header]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, 0, nil, fmt.Errorf("%w: section header: %w", ErrMalformed, err)
	}
	size := binary.LittleEndian.Uint32(head[2:])
	if size > Max {
		return 0, 0, nil, fmt.Errorf("%w: section %d claims %d bytes", ErrMalformed, head[0], size)
	}
	s.buf.Reset()
	if n, err := io.Copy(&s.buf, io.LimitReader(s.r, int64(size)+4)); err != nil || n != int64(size)+4 {
		return 0, 0, nil, fmt.Errorf("%w: section %d ends after %d of %d bytes: %w", ErrMalformed, head[0], n, size, orEOF(err))
	}
	payload = s.buf.Bytes()[:size]
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, payload)
	if sum != binary.LittleEndian.Uint32(s.buf.Bytes()[size:]) {
		return 0, 0, nil, fmt.Errorf("%w: section %d fails its checksum", ErrMalformed, head[0])
	}
	s.count++
	return head[0], head[1], payload, nil
}

// Count is the number of sections read.
func (s *Reader) Count() uint64 { return s.count }

// End checks that nothing follows. Errors wrap ErrMalformed.
func (s *Reader) End() error {
	var extra [1]byte
	if n, _ := io.ReadFull(s.r, extra[:]); n != 0 {
		return fmt.Errorf("%w: bytes after the end", ErrMalformed)
	}
	return nil
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}
