package raftstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/yardmaster/yardmaster/raftstore/peer"
)

// ErrRecovered means that the cluster of this node was recovered without it: the
// cluster goes on under another id, and what only this node has is given up. Such
// an error is ErrOtherCluster too.
var ErrRecovered = errors.New("cluster was recovered without this node")

// errForgone means that a peer is still of the cluster that this one was recovered
// from. It stops when it learns of that.
var errForgone = errors.New("is still of the cluster that this one was recovered from")

// recovered is a cluster that ended with a recovery.
type recovered struct {
	ClusterID string    `json:"cluster_id"`
	At        time.Time `json:"at"`
}

// maxRecovered bounds how many recoveries are remembered.
const maxRecovered = 16

// remember adds clusters to those known to have ended; the newest stay.
func remember(list []recovered, more ...recovered) []recovered {
	out := slices.Clone(list)
	for _, r := range more {
		if !slices.ContainsFunc(out, func(have recovered) bool { return have.ClusterID == r.ClusterID }) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b recovered) int { return a.At.Compare(b.At) })
	return out[max(0, len(out)-maxRecovered):]
}

// successor names the cluster that several recovered planners go on as together:
// each computes it by itself, and for other voters it is another one.
func successor(of string, voters []Member) string {
	text := []string{"recovered", of}
	for _, v := range voters {
		text = append(text, v.ID+"="+v.Addr)
	}
	h := sha256.Sum256([]byte(strings.Join(text, "\x00")))
	return hex.EncodeToString(h[:16])
}

// awayError is ErrRecovered with what to do.
type awayError struct {
	at     time.Time
	folder string // empty where nothing is kept
}

func (e *awayError) Error() string {
	text := fmt.Sprintf("the cluster was recovered on %s without this planner", e.at.UTC().Format("2006-01-02 15:04 MST"))
	if e.folder == "" {
		return text
	}
	return text + fmt.Sprintf(": empty the folder %s and start again with --join", e.folder)
}

func (e *awayError) Is(target error) bool { return target == ErrRecovered || target == ErrOtherCluster }

// ended are the clusters that n knows to have ended.
func ended(n *peer.Node) (list []recovered) {
	for _, r := range n.GetRecoveredFrom() {
		if len(list) < maxRecovered && r.GetClusterId() != "" {
			list = append(list, recovered{r.GetClusterId(), time.Unix(r.GetAt(), 0)})
		}
	}
	return list
}

// find is the entry of a cluster, if it is among them.
func find(list []recovered, cluster string) (recovered, bool) {
	i := slices.IndexFunc(list, func(r recovered) bool { return r.ClusterID == cluster })
	if i < 0 || cluster == "" {
		return recovered{}, false
	}
	return list[i], true
}

// wasLeftBehind is ErrRecovered when n is of the cluster that this node's goes on
// as, and nil otherwise. n's certificate has been verified.
func (s *Store) wasLeftBehind(n *peer.Node) error {
	r, ok := find(ended(n), s.ClusterID())
	if !ok || n.GetClusterId() == s.ClusterID() {
		return nil
	}
	e := &awayError{at: r.At}
	if s.dir != nil {
		e.folder = s.dir.path
	}
	return e
}

// stranger is the error for a node of another cluster at addr.
func (s *Store) stranger(n *peer.Node, addr string) error {
	if err := s.wasLeftBehind(n); err != nil {
		return err
	}
	if _, ok := find(s.id.Load().Recovered, n.GetClusterId()); ok {
		return fmt.Errorf("%s at %s %w", n.GetId(), addr, errForgone)
	}
	return fmt.Errorf("%w: %s at %s is of %s, this node is of %s", ErrOtherCluster, n.GetId(), addr, n.GetClusterId(), s.ClusterID())
}

// fence stops a planner whose cluster goes on without it, if it says so: err may be
// nil. A gateway has nothing to lose and goes over by itself: see Stranded.
func (s *Store) fence(err error) {
	if errors.Is(err, ErrRecovered) && !s.cfg.Nonvoter {
		s.trip(err)
	}
}

// refuseStranger is the answer to a greeting from another cluster. It says who
// answers: one of the two may have to stop.
func (s *Store) refuseStranger(theirs string) error {
	st, err := status.Newf(codes.FailedPrecondition, "you are of cluster %q, this node is of %q", theirs, s.ClusterID()).WithDetails(s.self())
	if err != nil {
		return otherCluster(theirs, s.ClusterID())
	}
	return st.Err()
}

// refusedBy is what such an answer means here.
func (s *Store) refusedBy(answer error, addr string) error {
	st := status.Convert(answer)
	for _, d := range st.Details() {
		if n, ok := d.(*peer.Node); ok {
			return s.stranger(n, addr)
		}
	}
	return fmt.Errorf("%w: %s", ErrOtherCluster, st.Message())
}

// heritage is what the nodes of a cluster that were met know of its past.
func (s *Store) heritage(cluster string) (list []recovered) {
	if s.net == nil {
		return nil
	}
	for _, n := range s.net.book.Nodes(time.Time{}) {
		if n.GetClusterId() == cluster {
			list = remember(list, ended(n)...)
		}
	}
	return list
}

// isAmong reports that a cluster has ended.
func isAmong(list []recovered, cluster string) bool {
	_, ok := find(list, cluster)
	return ok
}
