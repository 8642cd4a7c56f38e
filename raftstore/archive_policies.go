package raftstore

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/blob"
	"github.com/yardmaster/yardmaster/raftstore/files"
)

// listPolicies notes which modules belong into an archive: those that the state
// named before or after it was captured. It fetches what this node lacks.
func (s *Store) listPolicies(ctx context.Context, a *Archive, before, after *rollout.Table) {
	seen := map[rollout.Digest]bool{}
	for _, v := range append(before.Versions(), after.Versions()...) {
		if seen[v.Digest] {
			continue
		}
		seen[v.Digest] = true
		if _, err := s.blobOnce(ctx, v.Digest); err != nil {
			s.log.Warn("a policy's bytes are not in the saved snapshot", "policy", v.Ref(), "digest", v.Digest.Short(), "error", err)
			a.Missing = append(a.Missing, v.Digest)
			continue
		}
		a.Policies = append(a.Policies, ArchivePolicy{v.Digest, v.Size})
	}
	if len(a.Policies) > 0 {
		a.Format = archiveFormatPolicies
	}
}

// policies reads modules and checks them by their digests.
func (in *archiveReader) policies(list []ArchivePolicy, keep func(rollout.Digest, []byte) error) error {
	var total int64
	for _, p := range list {
		name := archiveBlobs + p.Digest.String()
		total += p.Bytes
		if p.Bytes < 1 || p.Bytes > blob.MaxBlob || total > 2*rollout.MaxModules {
			return fmt.Errorf("%w: %s of %d bytes", ErrBadArchive, name, p.Bytes)
		}
		size, err := in.next(name)
		if err != nil {
			return err
		}
		if size != p.Bytes {
			return fmt.Errorf("%w: %s has %d bytes, and %s says %d", ErrBadArchive, name, size, archiveMeta, p.Bytes)
		}
		data, err := io.ReadAll(in.tar)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrBadArchive, name, err)
		}
		if rollout.DigestOf(data) != p.Digest {
			return fmt.Errorf("%w: %s has other bytes", ErrBadArchive, name)
		}
		fmt.Fprintf(&in.sums, "%s  %s\n", p.Digest, name)
		if err := keep(p.Digest, data); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	return nil
}

// keepIn writes modules into a folder, for bringPolicies.
func keepIn(folder string) func(rollout.Digest, []byte) error {
	return func(d rollout.Digest, data []byte) error {
		return files.WriteSynced(filepath.Join(folder, d.String()), data)
	}
}

// bringPolicies brings an archive's modules to a quorum of planners, before the
// state that names them. Where that takes long, they are brought once more, which costs
// little, so that none is dropped before it is named.
func (s *Store) bringPolicies(ctx context.Context, g *groups, folder string, a Archive) error {
	began := time.Now()
	if err := s.bringOnce(ctx, g, folder, a); err != nil {
		return err
	}
	if time.Since(began) > blobGrace/4 {
		if err := s.bringOnce(ctx, g, folder, a); err != nil {
			return err
		}
	}
	for _, d := range a.Missing {
		s.log.Warn("the saved snapshot names a policy whose bytes it does not have; nodes that have them give them, else push it again", "digest", d)
	}
	return nil
}

func (s *Store) bringOnce(ctx context.Context, g *groups, folder string, a Archive) error {
	for _, p := range a.Policies {
		data, err := files.ReadBounded(filepath.Join(folder, p.Digest.String()), blob.MaxBlob)
		if err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		if _, err := s.spread(ctx, g, p.Digest, data, nil); err != nil {
			return fmt.Errorf("restore: nothing has changed: %w", err)
		}
	}
	return nil
}
