package logline

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Options set up a handler.
type Options struct {
	// Level is the least severity that is written; nil is slog.LevelInfo.
	Level slog.Leveler
	// JSON writes objects instead of key=value pairs.
	JSON bool
}

// Handler is a slog.Handler. It is safe for concurrent use.
type Handler struct {
	level slog.Leveler
	json  bool
	sink  *sink
	// prefix is the attributes of WithAttrs, encoded, and groups what WithGroup
	// named: the first opened of them are in prefix already.
	prefix []byte
	groups []string
	opened int
}

// New makes a handler that writes to w, from one goroutine at a time. Close it
// before w.
func New(w io.Writer, o Options) *Handler {
	if o.Level == nil {
		o.Level = slog.LevelInfo
	}
	h := &Handler{level: o.Level, json: o.JSON}
	h.sink = newSink(w, h.lostLine)
	return h
}

// Close writes what is left and returns when it is written, or an error when the
// writer did not take it within a second. Lines that come later are written by
// their callers, who wait for it. Closing again does nothing but wait.
func (h *Handler) Close() error { return h.sink.close() }

// Enabled reports whether records of the level are written.
func (h *Handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// buffers holds lines being encoded, of *[]byte.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// keptLine bounds the buffers kept, in bytes.
const keptLine = 16 << 10

// Handle encodes r and hands the line over. It does not wait for the writer before
// [Handler.Close], and never fails.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	buf := buffers.Get().(*[]byte)
	e := encoder{b: (*buf)[:0], json: h.json}
	h.encode(&e, &r)
	h.sink.add(e.b)
	if *buf = e.b; cap(e.b) <= keptLine {
		buffers.Put(buf)
	}
	return nil
}

func (h *Handler) encode(e *encoder, r *slog.Record) {
	e.open()
	if !r.Time.IsZero() {
		e.key(slog.TimeKey)
		e.time(r.Time)
	}
	e.key(slog.LevelKey)
	e.text(r.Level.String())
	e.key(slog.MessageKey)
	e.text(r.Message)
	if len(h.prefix) > 0 {
		e.separate()
		e.b = append(e.b, h.prefix...)
		e.first = false
	}
	depth := h.opened
	if r.NumAttrs() > 0 {
		start := e.mark()
		e.openGroups(h.groups[:h.opened], h.groups[h.opened:])
		before := len(e.b)
		r.Attrs(func(a slog.Attr) bool {
			e.attr(a)
			return true
		})
		if depth = len(h.groups); len(e.b) == before { // a group of nothing is not shown
			e.reset(start)
			depth = h.opened
		}
	}
	e.close(depth)
}

// WithAttrs is the handler with attributes that every line gets.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	e := encoder{json: h.json, first: len(h.prefix) == 0}
	e.openGroups(h.groups[:h.opened], h.groups[h.opened:])
	before := len(e.b)
	for _, a := range attrs {
		e.attr(a)
	}
	if len(e.b) == before {
		return h
	}
	next.prefix = append(slices.Clip(h.prefix), e.b...)
	next.opened = len(h.groups)
	return &next
}

// WithGroup is the handler whose later attributes belong to a group.
func (h *Handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	next := *h
	next.groups = append(slices.Clip(h.groups), name)
	return &next
}

// lostLine is the line that says how many are missing.
func (h *Handler) lostLine(n int) []byte {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "log lines were left out, because nobody read the log", 0)
	r.AddAttrs(slog.Int("lines", n))
	e := encoder{json: h.json}
	(&Handler{json: h.json}).encode(&e, &r)
	return e.b
}
