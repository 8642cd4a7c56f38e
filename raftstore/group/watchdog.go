package group

import (
	"fmt"
	"sync"
	"time"
)

// transferWatch notices a transfer of leadership that never ends: the library
// can leave its mark set when it loses leadership meanwhile, and then refuses
// every entry once it leads again (hashicorp/raft#696).
type transferWatch struct {
	limit time.Duration

	mu    sync.Mutex
	since time.Time // first refusal since the last success; zero is none
}

// seen records a refusal and returns ErrTransferStuck once refusals have gone
// on for longer than the limit.
func (w *transferWatch) seen(now time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		w.since = now
	}
	if d := now.Sub(w.since); d > w.limit {
		return fmt.Errorf("%w: proposals refused for %v", ErrTransferStuck, d)
	}
	return nil
}

// clear records that the group accepts entries.
func (w *transferWatch) clear() {
	w.mu.Lock()
	w.since = time.Time{}
	w.mu.Unlock()
}
