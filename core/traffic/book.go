package traffic

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/yardmaster/yardmaster/core/clock"
)

// Every is how often a gateway reports.
const Every = 500 * time.Millisecond

// Book is what gateways have said. It is safe for concurrent use, and has a page for
// each that is there: whoever opens pages bounds their number.
type Book struct {
	mu    sync.Mutex
	pages map[string]*Page
}

// NewBook is an empty book.
func NewBook() *Book { return &Book{pages: map[string]*Page{}} }

// Page is what one incarnation of a gateway has said.
type Page struct {
	book        *Book
	gateway     string
	incarnation uint64
	at          time.Time // of the last word; zero before the first
	totals      map[string]Totals
}

// Open makes the gateway's page. The one that it had before says nothing any more.
// The caller closes it.
func (b *Book) Open(gateway string, incarnation uint64) *Page {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &Page{book: b, gateway: gateway, incarnation: incarnation, totals: map[string]Totals{}}
	b.pages[gateway] = p
	return p
}

// Update replaces what the gateway has said of these models, which must be valid, and
// says that what it said of the others is so still. The book takes ownership of news.
// The error wraps [ErrReport]: it names too many models.
func (p *Page) Update(now time.Time, news []Totals) error {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	p.at = now
	for _, t := range news {
		if _, known := p.totals[t.Model]; !known && len(p.totals) >= MaxModels {
			return fmt.Errorf("%w: more than %d models", ErrReport, MaxModels)
		}
		p.totals[t.Model] = t
	}
	return nil
}

// Close removes the page, unless the gateway has another by now.
func (p *Page) Close() {
	p.book.mu.Lock()
	defer p.book.mu.Unlock()
	if p.book.pages[p.gateway] == p {
		delete(p.book.pages, p.gateway)
	}
}

// word is a copy of a page.
type word struct {
	incarnation uint64
	at          time.Time
	totals      map[string]Totals // their slices are never changed
}

// words are copies of all pages that say something.
func (b *Book) words() map[string]word {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[string]word, len(b.pages))
	for name, p := range b.pages {
		if !p.at.IsZero() {
			out[name] = word{p.incarnation, p.at, maps.Clone(p.totals)}
		}
	}
	return out
}

// Keep writes what a gateway of this process counts into the book until ctx ends: for
// planners that are alone, and have no load hub.
func Keep(ctx context.Context, c clock.Clock, b *Book, gateway string, read func() []Totals) {
	page := b.Open(gateway, uint64(c.Now().UnixNano()))
	defer page.Close()
	reporter := NewReporter(read)
	timer := c.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		// It is this process's own word, bounded by Read.
		_ = page.Update(c.Now(), reporter.News())
		timer.Reset(Every)
	}
}
