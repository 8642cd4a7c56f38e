package raftstore

import (
	"cmp"
	"time"

	"github.com/yardmaster/yardmaster/raftstore/group"
	"github.com/yardmaster/yardmaster/raftstore/wal"
)

// Tuning is what the groups do otherwise than they would. The zero value
// changes nothing, and is right but for tests: they make rare things frequent,
// and disks fail.
type Tuning struct {
	SnapshotEvery   time.Duration // how often a snapshot is considered
	SnapshotEntries uint64        // how many entries it takes to write one
	TrailingLogs    uint64        // how many entries stay in the log behind it
	SampleEvery     uint64        // distance of digest samples, in entries
	// WrapLog, if not nil, may put something between a group and its log. What it
	// returns is the group's from then on.
	WrapLog func(group string, log wal.Store) wal.Store
	// FreeForPolicies, if not nil, tells the free bytes of the disk under policies.
	FreeForPolicies func() (uint64, error)
}

func (t *Tuning) apply(c *group.Config) {
	c.SnapshotEvery = cmp.Or(t.SnapshotEvery, c.SnapshotEvery)
	c.SnapshotEntries = cmp.Or(t.SnapshotEntries, c.SnapshotEntries)
	c.TrailingLogs = cmp.Or(t.TrailingLogs, c.TrailingLogs)
	c.SampleEvery = cmp.Or(t.SampleEvery, c.SampleEvery)
	if t.WrapLog != nil {
		c.Store = t.WrapLog(c.Name, c.Store)
	}
}
