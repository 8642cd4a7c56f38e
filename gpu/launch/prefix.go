package launch

import (
	"bytes"
	"io"
)

// longestLine bounds what is kept of a line that does not end.
const longestLine = 64 << 10

// prefixer cuts a stream into lines and puts a name before each. exec calls
// its Write from one goroutine when stdout and stderr are the same writer.
type prefixer struct {
	out    io.Writer
	prefix []byte
	line   []byte // begins with the prefix
}

func newPrefixer(out io.Writer, name string) *prefixer {
	prefix := []byte(name + " | ")
	return &prefixer{out: out, prefix: prefix, line: bytes.Clone(prefix)}
}

func (p *prefixer) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		part := b
		if end >= 0 {
			part = b[:end]
		}
		part = part[:min(len(part), max(0, longestLine-len(p.line)))]
		p.line = append(p.line, part...)
		if end < 0 {
			break
		}
		p.emit()
		b = b[end+1:]
	}
	return n, nil
}

func (p *prefixer) emit() {
	p.line = append(p.line, '\n')
	p.out.Write(p.line) //nolint:errcheck // logs have nowhere else to go
	p.line = append(p.line[:0], p.prefix...)
}

func (p *prefixer) flush() {
	if len(p.line) > len(p.prefix) {
		p.emit()
	}
}
