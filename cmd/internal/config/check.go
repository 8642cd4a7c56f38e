package config

import (
	"maps"
	"slices"
	"strings"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// check looks at settings that depend on one another.
func (c *Config) check(faults *problems) {
	if c.Gateway.IdleTimeout > c.Gateway.RequestTimeout {
		faults.add("", "gateway.idle-timeout (%v) is longer than gateway.request-timeout (%v)", c.Gateway.IdleTimeout, c.Gateway.RequestTimeout)
	}
	if c.Gateway.FirstTokenTimeout > c.Gateway.RequestTimeout {
		faults.add("", "gateway.first-token-timeout (%v) is longer than gateway.request-timeout (%v)", c.Gateway.FirstTokenTimeout, c.Gateway.RequestTimeout)
	}
	if c.Gateway.Heartbeat > 0 && c.Gateway.Heartbeat < minHeartbeat {
		faults.add("", "gateway.heartbeat (%v) is shorter than %v; 0 sends none", c.Gateway.Heartbeat, minHeartbeat)
	}
	engines := map[string]bool{}
	for _, e := range c.Gateway.Engines {
		one := strings.TrimRight(e, "/")
		if engines[one] {
			faults.add("", "gateway.engine names %s twice", e)
		}
		engines[one] = true
	}
	if set := []bool{c.TLS.Cert != "", c.TLS.Key != "", c.TLS.CA != ""}; slices.Contains(set, true) && slices.Contains(set, false) {
		faults.add("", "tls.cert, tls.key and tls.ca belong together: give all three or none")
	}
	if c.TLS.Enabled() && c.TLS.Plaintext {
		faults.add("", "tls.plaintext contradicts tls.cert")
	}
	if c.Worker.Script != "" && c.Worker.Engine != "scripted" {
		faults.add("", "worker.script needs worker.engine: scripted")
	}
	c.Cluster.check(faults)
	c.Scale.check(faults, &c.Worker)
}

func (c *Cluster) check(faults *problems) {
	if set := []bool{c.PeerCert != "", c.PeerKey != "", c.PeerCA != ""}; slices.Contains(set, true) && slices.Contains(set, false) {
		faults.add("", "cluster.peer-cert, cluster.peer-key and cluster.peer-ca belong together: give all three or none")
	}
	if c.Certificates() && c.TokenFile != "" {
		faults.add("", "cluster.token-file and cluster.peer-cert contradict one another: members know each other by a token or by certificates")
	}
	if c.BootstrapExpect%2 == 0 {
		faults.add("", "cluster.bootstrap-expect (%d) is even: one planner less survives as many failures; use 1, 3 or 5", c.BootstrapExpect)
	}
	if c.BootstrapExpect > 1 && len(c.Join) == 0 {
		faults.add("", "cluster.bootstrap-expect (%d) needs cluster.join: the peer addresses by which the founders find one another", c.BootstrapExpect)
	}
	seen := map[string]bool{}
	for _, addr := range c.Join {
		if seen[addr] {
			faults.add("", "cluster.join names %s twice", addr)
		}
		seen[addr] = true
	}
}
