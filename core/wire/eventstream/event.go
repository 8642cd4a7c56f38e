package eventstream

import "bytes"

// Event is one event, comment-only and empty ones included. Its slices belong
// to the Reader and are valid until the next Fill.
type Event struct {
	// Raw is the event as it came, its ending blank line included.
	Raw []byte
	// Type is the value of the last event field; empty when there is none, which
	// means "message".
	Type []byte
	// Data joins the data fields with LF. It is nil when the event has none:
	// such an event is a comment or padding, and a client sees nothing of it.
	Data []byte
}

// parse reads the fields of raw. A single data line, the ordinary case, is not
// copied; several are joined in scratch, which is returned for reuse.
func parse(raw, scratch []byte) (Event, []byte) {
	e := Event{Raw: raw}
	joined := false
	for rest := raw; len(rest) > 0; {
		var line []byte
		line, rest = cutLine(rest)
		name, value := field(line)
		switch string(name) {
		case "event":
			e.Type = value
		case "data":
			switch {
			case e.Data == nil:
				e.Data = value
			case !joined:
				scratch = append(append(append(scratch[:0], e.Data...), '\n'), value...)
				joined = true
			default:
				scratch = append(append(scratch, '\n'), value...)
			}
		}
	}
	if joined {
		e.Data = scratch
	}
	return e, scratch
}

// cutLine cuts b after its first line ending. The LF of a CRLF is left to look
// like an empty line, which no field is in.
func cutLine(b []byte) (line, rest []byte) {
	end, found := lineEnd(b)
	if !found {
		return b, nil
	}
	return b[:end], b[end+1:]
}

// field splits a line into name and value. One space after the colon is not
// part of the value. A comment has an empty name.
func field(line []byte) (name, value []byte) {
	name, value, found := bytes.Cut(line, []byte(":"))
	if !found {
		return line, line[len(line):] // empty, and not nil
	}
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return name, value
}
