package prefix

// Each visits the blocks that w holds, in no particular order. It holds the
// writer off and reads the whole index: it is for repairs, snapshots and tests,
// not for requests.
func (x *Index) Each(w Worker, visit func(Hash)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.slot(w); s != 0 {
		x.eachPage(func(_ uint32, p *pageMem) {
			p.eachLive(func(at int) {
				if x.holds(p, at, s) {
					visit(Hash(p[at]))
				}
			})
		})
	}
}

func (x *Index) eachPage(visit func(n uint32, p *pageMem)) {
	chunks := *x.pages.chunks.Load()
	for n := range x.pages.used {
		if x.meta[n].inUse {
			visit(n, page(chunks, n))
		}
	}
}

// holds reports whether slot s holds the block at p[at].
func (x *Index) holds(p *pageMem, at int, s uint16) bool {
	a, b := p[at+1], p[at+2]
	if a&inRow != 0 {
		return x.rows.row(rowOf(a))[s/64]>>(s%64)&1 != 0
	}
	return hasLane(a, s) || hasLane(b&^referenced, s)
}

// removeBuckets takes from w all blocks of the buckets, by one walk over the
// index.
func (x *Index) removeBuckets(w Worker, buckets Buckets) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.slot(w)
	if s == 0 {
		return
	}
	x.eachPage(func(n uint32, p *pageMem) {
		p.eachLive(func(at int) {
			if buckets.Has(Hash(p[at]).Bucket()) && x.holds(p, at, s) {
				x.touch(n)
				x.dropHolder(n, p, at, s)
			}
		})
	})
	x.account()
}
