package raftstore

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/rollout"
	"github.com/yardmaster/yardmaster/raftstore/files"
	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// An archive is a tar file of these, in this order. The sums come last, so a file
// that was cut off has none. Before them come policies' bytes, if there are any:
// then it is of format 2, and else of format 1, which older releases read.
const (
	archiveMeta   = "meta.json"
	archiveCore   = "core.snapshot"
	archivePrefix = "prefix.snapshot"
	archiveBlobs  = "blobs/" // and the digest
	archiveSums   = "SHA256SUMS"

	archiveFormat         = 1
	archiveFormatPolicies = 2
)

// ErrBadArchive means that a file is no archive, or a damaged one.
var ErrBadArchive = errors.New("not a whole snapshot of a cluster")

// Archive is what a saved snapshot says of itself.
type Archive struct {
	Format    int         `json:"format"`
	ClusterID string      `json:"cluster_id"`
	NodeID    string      `json:"node_id"` // who saved it
	Version   string      `json:"version"` // of its binary
	Created   time.Time   `json:"created"`
	Level     uint32      `json:"level"` // feature level
	Core      ArchivePart `json:"core"`
	Prefix    ArchivePart `json:"prefix"`
	// Policies are the modules in it, by digest.
	Policies []ArchivePolicy `json:"policies,omitempty"`
	// Missing are the digests of versions whose bytes no node had when it was saved:
	// they have to be pushed again after a restore.
	Missing []rollout.Digest `json:"missing_policies,omitempty"`
}

// ArchivePolicy is the bytes of one version in an archive.
type ArchivePolicy struct {
	Digest rollout.Digest `json:"digest"`
	Bytes  int64          `json:"bytes"`
}

// ArchivePart is one group's state in an archive.
type ArchivePart struct {
	Index  uint64 `json:"index"` // last entry in it
	Term   uint64 `json:"term"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"` // known once it is written or read
}

// SaveSnapshot writes the whole replicated state, as fresh as a linearizable
// read, into w. Half an archive never passes for a whole one. Errors are those of
// Read, of w and of the disk.
func (s *Store) SaveSnapshot(ctx context.Context, w io.Writer) (Archive, error) {
	g := s.groups.Load()
	if g == nil {
		return Archive{}, s.notInCluster()
	}
	for _, which := range []peer.Group{peer.Group_GROUP_CORE, peer.Group_GROUP_PREFIX} {
		if err := s.catchUpOnce(ctx, g, which, false); err != nil {
			return Archive{}, err
		}
	}
	a := Archive{
		Format: archiveFormat, ClusterID: s.ClusterID(), NodeID: s.cfg.NodeID, Version: s.cfg.Version,
		Created: time.Now().UTC(), Level: s.machine.FeatureLevel(),
	}
	before := s.machine.Rollout()
	core, coreBytes, err := g.core.SaveSnapshot(ctx)
	if err != nil {
		return Archive{}, err
	}
	defer coreBytes.Close() //nolint:errcheck // read only
	pre, prefixBytes, err := g.prefix.SaveSnapshot(ctx)
	if err != nil {
		return Archive{}, err
	}
	defer prefixBytes.Close() //nolint:errcheck // read only
	a.Core, a.Prefix = partOf(core), partOf(pre)
	s.listPolicies(ctx, &a, before, s.machine.Rollout())
	err = a.write(w, files.Until(ctx, coreBytes), files.Until(ctx, prefixBytes), func(d rollout.Digest) ([]byte, error) {
		return s.Blob(ctx, d)
	})
	return a, err
}

func partOf(m group.SnapshotMeta) ArchivePart {
	return ArchivePart{Index: m.Index, Term: m.Term, Bytes: m.Size}
}

// write writes the archive and notes the sums of its parts.
func (a *Archive) write(w io.Writer, core, pre io.Reader, policy func(rollout.Digest) ([]byte, error)) error {
	out := tar.NewWriter(w)
	meta, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	var sums strings.Builder
	add := func(name string, r io.Reader, size int64) (string, error) {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: a.Created}); err != nil {
			return "", fmt.Errorf("write %s: %w", name, err)
		}
		h := sha256.New()
		if n, err := io.Copy(io.MultiWriter(out, h), r); err != nil || n != size {
			return "", fmt.Errorf("write %s: %d of %d bytes: %w", name, n, size, orUnexpected(err))
		}
		sum := hex.EncodeToString(h.Sum(nil))
		fmt.Fprintf(&sums, "%s  %s\n", sum, name)
		return sum, nil
	}
	if _, err := add(archiveMeta, strings.NewReader(string(meta)), int64(len(meta))); err != nil {
		return err
	}
	if a.Core.SHA256, err = add(archiveCore, core, a.Core.Bytes); err != nil {
		return err
	}
	if a.Prefix.SHA256, err = add(archivePrefix, pre, a.Prefix.Bytes); err != nil {
		return err
	}
	for _, p := range a.Policies {
		data, err := policy(p.Digest)
		if err != nil {
			return err
		}
		if _, err := add(archiveBlobs+p.Digest.String(), bytes.NewReader(data), p.Bytes); err != nil {
			return err
		}
	}
	list := sums.String()
	if _, err := add(archiveSums, strings.NewReader(list), int64(len(list))); err != nil {
		return err
	}
	return out.Close()
}

func orUnexpected(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// InspectSnapshot reads an archive to its end, checks it and says what is in it.
// It needs no cluster. Errors wrap ErrBadArchive, ErrNewerFormat or are r's.
func InspectSnapshot(r io.Reader) (Archive, error) {
	return readArchive(r, io.Discard, io.Discard, func(rollout.Digest, []byte) error { return nil })
}

// maxMeta bounds the small parts of an archive.
const maxMeta = 1 << 20

// readArchive reads an archive to its end and gives its large parts to the
// writers, and policies' bytes to keep. Nothing may be done with them before it has
// returned.
func readArchive(r io.Reader, core, pre io.Writer, keep func(rollout.Digest, []byte) error) (Archive, error) {
	var a Archive
	in := archiveReader{tar: tar.NewReader(r)}
	meta, err := in.small(archiveMeta)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(meta, &a); err != nil {
		return a, fmt.Errorf("%w: %s: %w", ErrBadArchive, archiveMeta, err)
	}
	if a.Format != archiveFormat && a.Format != archiveFormatPolicies {
		return a, fmt.Errorf("%w: %w: format %d, this release knows %d", ErrBadArchive, ErrNewerFormat, a.Format, archiveFormatPolicies)
	}
	if a.Core.SHA256, err = in.part(archiveCore, a.Core.Bytes, core); err != nil {
		return a, err
	}
	if a.Prefix.SHA256, err = in.part(archivePrefix, a.Prefix.Bytes, pre); err != nil {
		return a, err
	}
	if err := in.policies(a.Policies, keep); err != nil {
		return a, err
	}
	want := in.sums.String()
	got, err := in.small(archiveSums)
	switch {
	case err != nil:
		return a, err
	case string(got) != want:
		return a, fmt.Errorf("%w: a checksum is not right", ErrBadArchive)
	}
	if _, err := in.tar.Next(); !errors.Is(err, io.EOF) {
		return a, fmt.Errorf("%w: something follows its end", ErrBadArchive)
	}
	return a, nil
}

// archiveReader reads the files of an archive in their order.
type archiveReader struct {
	tar  *tar.Reader
	sums strings.Builder // of what was read
}

func (in *archiveReader) next(name string) (size int64, err error) {
	h, err := in.tar.Next()
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %s: %w", ErrBadArchive, name, err)
	case h.Name != name || h.Typeflag != tar.TypeReg:
		return 0, fmt.Errorf("%w: %.64q where %s should be", ErrBadArchive, h.Name, name)
	}
	return h.Size, nil
}

func (in *archiveReader) note(name string, h hash.Hash) string {
	sum := hex.EncodeToString(h.Sum(nil))
	fmt.Fprintf(&in.sums, "%s  %s\n", sum, name)
	return sum
}

func (in *archiveReader) small(name string) ([]byte, error) {
	size, err := in.next(name)
	if err != nil {
		return nil, err
	}
	if size > maxMeta {
		return nil, fmt.Errorf("%w: %s of %d bytes", ErrBadArchive, name, size)
	}
	b, err := io.ReadAll(in.tar)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBadArchive, name, err)
	}
	h := sha256.New()
	_, _ = h.Write(b) // never fails
	in.note(name, h)
	return b, nil
}

func (in *archiveReader) part(name string, size int64, to io.Writer) (sum string, err error) {
	got, err := in.next(name)
	if err != nil {
		return "", err
	}
	if got != size {
		return "", fmt.Errorf("%w: %s has %d bytes, and %s says %d", ErrBadArchive, name, got, archiveMeta, size)
	}
	h := sha256.New()
	if n, err := io.Copy(io.MultiWriter(to, h), in.tar); err != nil {
		return "", fmt.Errorf("%w: %s ends after %d of %d bytes: %w", ErrBadArchive, name, n, size, err)
	}
	return in.note(name, h), nil
}

// RestoreSnapshot replaces the whole replicated state by an archive, also by one
// of another cluster, whose name it does not take over. It reads all of r and
// checks it before anything changes. This node leads from then on, so it has to
// be a planner. Changes made meanwhile are lost, and all since the archive was
// saved. Errors wrap ErrBadArchive, ErrNewerFormat, ErrRefused, ErrNoLeader or,
// when some of it may have come into force, ErrAmbiguous: then repeat it.
func (s *Store) RestoreSnapshot(ctx context.Context, r io.Reader) (Archive, error) {
	g := s.groups.Load()
	switch {
	case g == nil:
		return Archive{}, s.notInCluster()
	case s.cfg.Nonvoter:
		return Archive{}, fmt.Errorf("%w: a gateway cannot restore: ask a planner", ErrRefused)
	case !s.restoring.CompareAndSwap(false, true):
		return Archive{}, fmt.Errorf("%w: another restore is under way", ErrRefused)
	}
	defer s.restoring.Store(false)
	folder, err := os.MkdirTemp(s.spoolDir(), "restore-*")
	if err != nil {
		return Archive{}, fmt.Errorf("restore: %w", err)
	}
	defer os.RemoveAll(folder) //nolint:errcheck // of no more use
	a, files, err := s.unpack(folder, files.Until(ctx, r))
	if err != nil {
		return Archive{}, err
	}
	defer files.close()
	if err := s.bringPolicies(ctx, g, folder, a); err != nil {
		return a, err
	}
	s.log.Warn("the cluster's state is being replaced by a saved one", "saved", a.Created, "of", a.ClusterID, "core", a.Core.Index)
	if err := s.restoreGroup(ctx, g.core, a.Core, files.core); err != nil {
		return a, err
	}
	if err := s.restoreGroup(ctx, g.prefix, a.Prefix, files.prefix); err != nil {
		return a, fmt.Errorf("%w: the core group is restored, the prefix group is not: %w", ErrAmbiguous, err)
	}
	return a, nil
}

// restorer is the part of a group that a snapshot is restored into.
type restorer interface {
	Restore(ctx context.Context, meta group.SnapshotMeta, r io.Reader) error
}

// restoreGroup restores one group. When leadership is lost meanwhile, it begins
// anew, a few times: a restoration that is not finished leaves this node, which
// has replaced its own state by then, apart from the others (the library's way of
// doing it). A restore at another planner takes the leadership as this one does;
// the pauses differ, so that both come to an end.
func (s *Store) restoreGroup(ctx context.Context, g restorer, part ArchivePart, f *os.File) error {
	for n, pause := 1, retryRestore; ; n, pause = n+1, 2*pause {
		if err := s.leadBoth(ctx); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		err := g.Restore(ctx, group.SnapshotMeta{Index: part.Index, Term: part.Term, Size: part.Bytes}, f)
		if err == nil || ctx.Err() != nil || s.ended() || (!errors.Is(err, ErrAmbiguous) && !passes(err)) {
			return err
		}
		if n == mostRestores {
			return fmt.Errorf("leadership went elsewhere %d times; is another restore under way? %w", n, err)
		}
		s.log.Warn("leadership was lost in the middle of a restoration; it begins anew", "attempt", n, "of", mostRestores, "error", err)
		if !s.sleep(ctx, pause+rand.N(pause)) {
			return err
		}
	}
}

const (
	// retryRestore is after the first attempt to restore, twice as much after the
	// next, and up to twice that by chance.
	retryRestore = 200 * time.Millisecond
	// mostRestores is how often it is attempted.
	mostRestores = 6
)

// unpacked is an archive's parts, ready to be read.
type unpacked struct{ core, prefix *os.File }

func (u unpacked) close() {
	for _, f := range []*os.File{u.core, u.prefix} {
		if f != nil {
			_ = f.Close() // was only read since
		}
	}
}

// unpack reads and checks an archive, and gives its core this cluster's name.
func (s *Store) unpack(folder string, r io.Reader) (a Archive, u unpacked, err error) {
	defer func() {
		if err != nil {
			u.close()
		}
	}()
	for name, f := range map[string]**os.File{archiveCore: &u.core, archivePrefix: &u.prefix} {
		if *f, err = os.Create(folder + "/" + name); err != nil {
			return a, u, fmt.Errorf("restore: %w", err)
		}
	}
	if a, err = readArchive(r, u.core, u.prefix, keepIn(folder)); err != nil {
		return a, u, err
	}
	for _, f := range []*os.File{u.core, u.prefix} {
		if _, err = f.Seek(0, io.SeekStart); err != nil {
			return a, u, fmt.Errorf("restore: %w", err)
		}
	}
	if err = s.rename(u.core); err != nil {
		return a, u, err
	}
	if err = s.prefix.Verify(u.prefix); err != nil {
		return a, u, fmt.Errorf("%w: %s: %w", ErrBadArchive, archivePrefix, err)
	}
	return a, u, nil
}

// rename gives the state in the file this cluster's name.
func (s *Store) rename(f *os.File) error {
	m := planner.NewAtLevel(s.cfg.MaxLevel)
	if err := m.Restore(f); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBadArchive, archiveCore, err)
	}
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if _, err := m.Snapshot().Renamed(s.ClusterID()).WriteTo(f); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

// leadBoth makes this node the leader of both groups.
func (s *Store) leadBoth(ctx context.Context) error {
	for end := time.Now().Add(longestCall); !s.Leading() || !s.LeadingPrefix(); {
		if s.net == nil {
			return ErrNoLeader
		}
		if err := s.Transfer(ctx, s.cfg.NodeID); errors.Is(err, ErrRefused) && time.Now().Before(end) && s.sleep(ctx, retryRestore) {
			continue // the leader was too slow this time
		} else if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.waitUntil(wait, "no leadership", func() bool { return s.Leading() && s.LeadingPrefix() })
		cancel()
		if err != nil && (ctx.Err() != nil || time.Now().After(end)) {
			return fmt.Errorf("%w: this node does not come to lead: %w", ErrNoLeader, err)
		}
	}
	return nil
}
