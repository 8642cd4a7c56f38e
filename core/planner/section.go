package planner

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"
)

// Wire form of a snapshot: the magic, then sections, each
//
//	type byte (bit 0x80: may be skipped), version byte, length uint32,
//	payload, CRC-32C uint32 over all of the section before it
//
// little-endian. The end section is last, and nothing follows it.
const (
	snapshotMagic = "YMCORE\x01\n"
	sectionHeader = 6
	maxSection    = 16 << 20

	sectionVersion = 1
)

// sectionType is a section's first byte. Numbers are for ever.
type sectionType uint8

const (
	sectionHead    sectionType = 1
	sectionWorkers sectionType = 2
	sectionWindow  sectionType = 3
	sectionEnd     sectionType = 4

	sectionIgnorable sectionType = 0x80
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sectionWriter writes sections until the first error, which it keeps.
type sectionWriter struct {
	w       io.Writer
	written int64
	count   uint64
	err     error
}

func (s *sectionWriter) magic() { s.write([]byte(snapshotMagic)) }

func (s *sectionWriter) section(t sectionType, m proto.Message) {
	if s.err != nil {
		return
	}
	buf := append(make([]byte, 0, 1024), byte(t), sectionVersion, 0, 0, 0, 0)
	buf, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(buf, m)
	if err != nil {
		s.err = err
		return
	}
	if len(buf)-sectionHeader > maxSection {
		s.err = fmt.Errorf("section %d of %d bytes is over the limit", t, len(buf)-sectionHeader)
		return
	}
	binary.LittleEndian.PutUint32(buf[2:], uint32(len(buf)-sectionHeader))
	s.write(binary.LittleEndian.AppendUint32(buf, crc32.Checksum(buf, castagnoli)))
	s.count++
}

func (s *sectionWriter) write(b []byte) {
	if s.err != nil {
		return
	}
	n, err := s.w.Write(b)
	s.written += int64(n)
	s.err = err
}

func readMagic(r io.Reader) error {
	var magic [len(snapshotMagic)]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return fmt.Errorf("%w: snapshot header: %w", ErrMalformed, err)
	}
	if string(magic[:]) != snapshotMagic {
		if string(magic[:6]) == snapshotMagic[:6] {
			return fmt.Errorf("snapshot format %d: %w", magic[6], ErrUnknownEntry)
		}
		return fmt.Errorf("%w: not a snapshot of the core group", ErrMalformed)
	}
	return nil
}

// readSection reads one section and checks it. Memory grows with what arrives,
// never with what a length claims.
func readSection(r io.Reader) (t sectionType, payload []byte, err error) {
	var header [sectionHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, fmt.Errorf("%w: section header: %w", ErrMalformed, err)
	}
	t = sectionType(header[0])
	size := binary.LittleEndian.Uint32(header[2:])
	if size > maxSection {
		return t, nil, fmt.Errorf("%w: section %d claims %d bytes", ErrMalformed, t, size)
	}
	var buf bytes.Buffer
	if n, err := io.Copy(&buf, io.LimitReader(r, int64(size)+4)); err != nil || n != int64(size)+4 {
		return t, nil, fmt.Errorf("%w: section %d ends after %d of %d bytes: %w", ErrMalformed, t, n, size, orEOF(err))
	}
	payload = buf.Bytes()[:size]
	sum := crc32.Update(crc32.Checksum(header[:], castagnoli), castagnoli, payload)
	if sum != binary.LittleEndian.Uint32(buf.Bytes()[size:]) {
		return t, nil, fmt.Errorf("%w: section %d fails its checksum", ErrMalformed, t)
	}
	if header[1] != sectionVersion && t&sectionIgnorable == 0 {
		return t, nil, fmt.Errorf("section %d version %d: %w", t, header[1], ErrUnknownEntry)
	}
	return t, payload, nil
}

func orEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}
