package transport

import "time"

// trustEvery is how often the port looks whether its connections' authorities
// are still trusted.
const trustEvery = 5 * time.Second

// sweep ends what is no longer vouched for: a certificate is looked at once, and
// a Raft stream may live for months.
func (p *Port) sweep() {
	for sleep(p.ctx, trustEvery) {
		p.distrust()
	}
}

func (p *Port) distrust() {
	gone := p.table.find(func(c *Conn) bool { return !p.id.Trusts(c.authority) })
	if len(gone) == 0 {
		return
	}
	p.log.Warn("ending the connections of an authority that is no longer trusted", "connections", len(gone))
	closeAll(gone)
}
