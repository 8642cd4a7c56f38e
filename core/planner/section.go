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
const snapshotMagic = "YMCORE\x01\n"

// sectionType is a section's first byte. Numbers are for ever.
type sectionType uint8

const (
	sectionHead    sectionType = 1
	sectionWorkers sectionType = 2
	sectionWindow  sectionType = 3
	sectionEnd     sectionType = 4

	// Of feature level 2.
	sectionRegisters sectionType = 5
	sectionQuotas    sectionType = 6
	sectionMembers   sectionType = 7

	// Of feature level 3.
	sectionPolicies    sectionType = 8
	sectionBindings    sectionType = 9
	sectionPolicyState sectionType = 10
	sectionRollout     sectionType = 11

	sectionIgnorable sectionType = section.Ignorable
)

// version is that of a section of the type in a snapshot of a feature level. The
// head's is raised with the level, so that a binary that does not know the level
// refuses the snapshot where it begins; the window's, because a result has more
// fields since.
func (t sectionType) version(level uint32) byte {
	switch {
	case t == sectionHead && level >= 3:
		return 3
	case (t == sectionHead || t == sectionWindow) && level >= 2:
		return 2
	}
	return 1
}

// sectionWriter writes messages until the first error, which it keeps.
type sectionWriter struct {
	*section.Writer
	level uint32 // the state's feature level
	err   error
}

func (s *sectionWriter) message(t sectionType, m proto.Message) {
	if s.err != nil {
		return
	}
	s.Write(byte(t), t.version(s.level), func(b []byte) []byte {
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

// nextSection reads one section, as a binary that knows no level above maxLevel.
// Errors wrap ErrMalformed or ErrUnknownEntry.
func nextSection(in *section.Reader, maxLevel uint32) (sectionType, []byte, error) {
	kind, version, payload, err := in.Next()
	if err != nil {
		return 0, nil, fmt.Errorf("%w: snapshot: %w", ErrMalformed, err)
	}
	t := sectionType(kind)
	if newest := t.version(maxLevel); (version == 0 || version > newest) && t&sectionIgnorable == 0 {
		return 0, nil, fmt.Errorf("section %d version %d: %w", kind, version, ErrUnknownEntry)
	}
	return t, payload, nil
}
