package planner

// Renamed is the same state under another cluster's name: what a cluster gets
// that is restored from another one's snapshot. InitCluster cannot do that.
func (s *Snapshot) Renamed(clusterID string) *Snapshot {
	out, named := *s, *s.meta
	named.clusterID = clusterID
	out.meta = &named
	return &out
}
