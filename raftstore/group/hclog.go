package group

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"time"

	"github.com/hashicorp/go-hclog"
)

// NewHCLog lets the Raft library and its log store write to l, lower than they
// think: what they warn of (every election) is everyday and for debugging, and
// what an operator has to act on is reported by the group itself.
func NewHCLog(l *slog.Logger) hclog.Logger {
	return hcLogger{Logger: hclog.NewNullLogger(), slog: l}
}

// hcLogger overrides what the library uses of the null logger.
type hcLogger struct {
	hclog.Logger
	slog *slog.Logger
	name string
	said *repeats // nil: errors are told each time
}

var levels = map[hclog.Level]slog.Level{
	hclog.Trace: slog.LevelDebug - 4,
	hclog.Debug: slog.LevelDebug - 4,
	hclog.Info:  slog.LevelDebug,
	hclog.Warn:  slog.LevelDebug,
	hclog.Error: slog.LevelWarn,
}

func (h hcLogger) Log(level hclog.Level, msg string, args ...any) {
	as := levels[level]
	args = render(args)
	if level == hclog.Error && h.said.again(time.Now(), msg, args) {
		as = slog.LevelDebug
	}
	h.slog.Log(context.Background(), as, msg, args...)
}

func (h hcLogger) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h hcLogger) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h hcLogger) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h hcLogger) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h hcLogger) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h hcLogger) With(args ...any) hclog.Logger {
	h.slog = h.slog.With(render(args)...)
	return h
}

func (h hcLogger) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h hcLogger) ResetNamed(name string) hclog.Logger {
	h.name = name
	h.slog = h.slog.With("component", name)
	return h
}

func (h hcLogger) Name() string { return h.name }

func (h hcLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(nil), "", 0)
}

func (h hcLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return lineWriter{h} }

type lineWriter struct{ h hcLogger }

func (w lineWriter) Write(b []byte) (int, error) {
	w.h.Info(string(b))
	return len(b), nil
}

// render expands the library's deferred formats.
func render(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			a = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
		out[i] = a
	}
	return out
}
