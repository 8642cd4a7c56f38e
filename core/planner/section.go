package planner

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/yardmaster/yardmaster/core/wire/section"
)

// A snapshot is the sections of core/wire/section with protobuf payloads. The
// end section is last, and nothing follows it.
const (
	snapshotMagic  = "YMCORE\x01\n"
	sectionVersion = 1
)

// sectionType is a section's first byte. Numbers are for ever.
type sectionType uint8

const (
	sectionHead    sectionType = 1
	sectionWorkers sectionType = 2
	sectionWindow  sectionType = 3
	sectionEnd     sectionType = 4

	sectionIgnorable sectionType = section.Ignorable
)

// sectionWriter writes messages until the first error, which it keeps.
type sectionWriter struct {
	*section.Writer
	err error
}

func (s *sectionWriter) message(t sectionType, m proto.Message) {
	if s.err != nil {
		return
	}
	s.Write(byte(t), sectionVersion, func(b []byte) []byte {
		out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
		if err != nil {
			s.err = err
			return b
		}
		return out
	})
}

func (s *sectionWriter) result() (int64, error) {
	n, err := s.Result()
	return n, errors.Join(s.err, err)
}

// openSections reads the magic. Errors wrap ErrMalformed or ErrUnknownEntry.
func openSections(r io.Reader) (*section.Reader, error) {
	in, err := section.NewReader(r, snapshotMagic)
	switch {
	case errors.Is(err, section.ErrFormat):
		return nil, fmt.Errorf("snapshot: %w: %w", ErrUnknownEntry, err)
	case err != nil:
		return nil, fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	return in, nil
}

// nextSection reads one section. Errors wrap ErrMalformed or ErrUnknownEntry.
func nextSection(in *section.Reader) (sectionType, []byte, error) {
	kind, version, payload, err := in.Next()
	if err != nil {
		return 0, nil, fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	if version != sectionVersion && kind&section.Ignorable == 0 {
		return 0, nil, fmt.Errorf("section %d version %d: %w", kind, version, ErrUnknownEntry)
	}
	return sectionType(kind), payload, nil
}
