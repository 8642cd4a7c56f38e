//go:build unix

package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const lockPoll = 100 * time.Millisecond

// lock takes the lock file at path, waiting until ctx ends. The kernel drops
// the lock when the process dies, so none is ever stale.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { file.Close() }, nil //nolint:errcheck // closing drops the lock whatever it returns
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			file.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("fetch: lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("fetch: another process is downloading: %w", ctx.Err())
		case <-poll.C:
		}
	}
}
