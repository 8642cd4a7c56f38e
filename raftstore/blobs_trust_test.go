package raftstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/core/rollout"
)

// Whatever node is asked, the planners judge an upload's signature, before they take
// any of its bytes; a gateway, and its own trust, are not asked.
func TestPlannersJudgeUploads(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	refuses := errors.New("none of the trusted keys made it")
	trusting := func(c *Config) {
		c.Verify = func(d rollout.Digest, signature []byte) (string, error) {
			if string(signature) == "k1 of "+d.String() {
				return "k1", nil
			}
			return "", refuses
		}
	}
	nodes := y.voters(3, trusting)
	y.level(nodes...)
	gateway := y.node("g1", func(c *Config) {
		gateway(c)
		c.Join = []string{nodes[0].addr}
		c.Verify = func(rollout.Digest, []byte) (string, error) { return "anybody", nil }
	}).mustStart("")
	y.ready(gateway)

	for seed, n := range []*node{gateway, nodes[0], nodes[1]} {
		data := module(10_000, uint64(20+seed))
		d := rollout.DigestOf(data)
		for _, signature := range []string{"", "k2 of " + d.String(), "k1 of " + rollout.DigestOf([]byte("others")).String()} {
			_, signer, err := n.PutSigned(within(t, 30*time.Second), data, []byte(signature))
			if !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), refuses.Error()) || signer != "" {
				t.Errorf("%s, %q: signer %q, %v", n.cfg.NodeID, signature, signer, err)
			}
		}
		for _, voter := range nodes {
			if voter.blobs.shelf.Has(d) {
				t.Errorf("%s has what it refused", voter.cfg.NodeID)
			}
		}
		got, signer, err := n.PutSigned(within(t, 30*time.Second), data, []byte("k1 of "+d.String()))
		if err != nil || got != d || signer != "k1" {
			t.Errorf("%s: %s by %q, %v", n.cfg.NodeID, got.Short(), signer, err)
		}
	}
	// What belongs to a state that is restored was judged when it was uploaded.
	if _, err := gateway.PutBlob(within(t, 30*time.Second), module(10_000, 30)); err != nil {
		t.Error(err)
	}
}
