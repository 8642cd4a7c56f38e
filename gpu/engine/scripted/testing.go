package scripted

import "context"

// TB is the part of testing.TB that NewTest needs.
type TB interface {
	Helper()
	Cleanup(f func())
	Context() context.Context
	Fatalf(format string, args ...any)
}

// NewTest starts an engine on a free port of the loopback interface for the
// length of a test. Each change is applied to the options, in order.
func NewTest(t TB, change ...func(*Options)) *Engine {
	t.Helper()
	var o Options
	for _, f := range change {
		f(&o)
	}
	e, err := New(o)
	if err != nil {
		t.Fatalf("scripted engine: %v", err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if err := e.Start(t.Context(), "127.0.0.1:0"); err != nil {
		t.Fatalf("scripted engine: %v", err)
	}
	return e
}

// YAML is a change for NewTest: play this script. A bad script panics, and so
// fails the test.
func YAML(script string) func(*Options) {
	s, err := ParseScript("script", []byte(script))
	if err != nil {
		panic(err)
	}
	return func(o *Options) { o.Script = s }
}
