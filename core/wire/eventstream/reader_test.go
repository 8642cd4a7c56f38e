package eventstream

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// seen is an event copied out of the reader.
type seen struct {
	Raw, Type, Data string
	HasData         bool
}

// pieces is a reader that returns its parts one per Read.
type pieces [][]byte

func (p *pieces) Read(b []byte) (int, error) {
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	if (*p)[0] = (*p)[0][n:]; len((*p)[0]) == 0 {
		*p = (*p)[1:]
	}
	return n, nil
}

func readAll(t testing.TB, src io.Reader, size, maxEvent int) (events []seen, rest string, err error) {
	t.Helper()
	r := NewReader(make([]byte, size), maxEvent)
	for {
		err = r.Fill(src)
		for e, ok := r.Next(); ok; e, ok = r.Next() {
			events = append(events, seen{string(r.Passed()), string(e.Type), string(e.Data), e.Data != nil})
			if !strings.HasSuffix(events[len(events)-1].Raw, string(e.Raw)) {
				t.Fatalf("raw %q is no part of what was passed", e.Raw)
			}
		}
		if err != nil {
			if _, ok := r.Rest(); ok {
				rest = string(r.Passed())
			}
			return events, rest, err
		}
	}
}

func TestEvents(t *testing.T) {
	tests := []struct {
		name, in string
		want     []seen
		rest     string
	}{
		{"lf", "data: a\n\ndata:b\n\n", []seen{{"data: a\n\n", "", "a", true}, {"data:b\n\n", "", "b", true}}, ""},
		{"crlf", "event: x\r\ndata: a\r\n\r\n", []seen{{"event: x\r\ndata: a\r\n\r\n", "x", "a", true}}, ""},
		{"cr", "data: a\r\rdata: b\r\r", []seen{{"data: a\r\r", "", "a", true}, {"data: b\r\r", "", "b", true}}, ""},
		{"mixed", "data: a\r\n\ndata: b\n\r\n", []seen{{"data: a\r\n\n", "", "a", true}, {"data: b\n\r\n", "", "b", true}}, ""},
		{"many lines", "data: a\ndata: b\ndata\ndata: c\n\n", []seen{{"data: a\ndata: b\ndata\ndata: c\n\n", "", "a\nb\n\nc", true}}, ""},
		{"comment", ": hello\n\n:\n\ndata: [DONE]\n\n", []seen{{": hello\n\n", "", "", false}, {":\n\n", "", "", false}, {"data: [DONE]\n\n", "", "[DONE]", true}}, ""},
		{"empty data", "data:\n\n", []seen{{"data:\n\n", "", "", true}}, ""},
		{"bom", "\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", []seen{{"\xef\xbb\xbfdata: a\n\n", "", "a", true}, {"\xef\xbb\xbfdata: b\n\n", "", "", false}}, ""},
		{"two spaces", "data:  a\n\n", []seen{{"data:  a\n\n", "", " a", true}}, ""},
		{"other fields", "id: 1\nretry: 5\ndatax: n\n\n", []seen{{"id: 1\nretry: 5\ndatax: n\n\n", "", "", false}}, ""},
		{"done inside text", "data: {\"a\":\"[DONE]\"}\n\n", []seen{{"data: {\"a\":\"[DONE]\"}\n\n", "", `{"a":"[DONE]"}`, true}}, ""},
		{"unfinished", "data: a\n\ndata: b\n", []seen{{"data: a\n\n", "", "a", true}}, "data: b\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, rest, err := readAll(t, strings.NewReader(tt.in), 64, 1<<10)
			if !errors.Is(err, io.EOF) || rest != tt.rest {
				t.Errorf("rest %q, err %v", rest, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			for cut := range len(tt.in) {
				checkSplit(t, tt.in, cut, got)
			}
		})
	}
}

// checkSplit reads in, cut at one offset, and wants the events of the uncut
// stream. Where the cut parts CR from LF, that LF moves to the next event.
func checkSplit(t testing.TB, in string, cut int, want []seen) {
	t.Helper()
	p := pieces{[]byte(in[:cut]), []byte(in[cut:])}
	if cut == 0 {
		p = p[1:]
	}
	got, rest, _ := readAll(t, &p, 4, 1<<20)
	var raw strings.Builder
	for i, e := range got {
		raw.WriteString(e.Raw)
		if i >= len(want) || e.Data != want[i].Data || e.Type != want[i].Type || e.HasData != want[i].HasData {
			t.Fatalf("cut at %d: event %d is %+v", cut, i, e)
		}
	}
	raw.WriteString(rest)
	if raw.String() != in || len(got) != len(want) {
		t.Fatalf("cut at %d: %d events, bytes %q of %q", cut, len(got), raw.String(), in)
	}
}

func TestReadErrorsComeAfterTheirBytes(t *testing.T) {
	got, _, err := readAll(t, iotest.DataErrReader(strings.NewReader("data: a\n\n")), 64, 64)
	if len(got) != 1 || !errors.Is(err, io.EOF) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestTooLong(t *testing.T) {
	events, _, err := readAll(t, strings.NewReader("data: a\n\ndata: "+strings.Repeat("x", 100)+"\n\n"), 16, 64)
	if !errors.Is(err, ErrTooLong) || len(events) != 1 {
		t.Errorf("%v, %v", events, err)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	stream := []byte(strings.Repeat("data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n", 3))
	src := bytes.NewReader(stream)
	r := NewReader(make([]byte, 1<<10), 1<<10)
	n := testing.AllocsPerRun(100, func() {
		src.Reset(stream)
		if err := r.Fill(src); err != nil {
			t.Fatal(err)
		}
		for _, ok := r.Next(); ok; _, ok = r.Next() {
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// model reads the standard's grammar the slow way, from the whole stream.
func model(in string) (events []seen) {
	in = strings.TrimPrefix(in, "\xef\xbb\xbf")
	in = strings.ReplaceAll(strings.ReplaceAll(in, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(in, "\n")
	var e seen
	var data []string
	for _, line := range lines[:len(lines)-1] { // the last is not ended
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			e.Data, e.HasData = strings.Join(data, "\n"), data != nil
			events = append(events, e)
			e, data = seen{}, nil
		case name == "data":
			data = append(data, value)
		case name == "event":
			e.Type = value
		}
	}
	return events
}

func FuzzReader(f *testing.F) {
	f.Add("data: a\n\nevent: b\r\ndata: c\r\n\r\n: x\r\rdata:d\rdata:e\r\r\n", uint8(3))
	f.Add("\xef\xbb\xbf\n\n\r\n\r\r\n", uint8(1))
	f.Fuzz(func(t *testing.T, in string, step uint8) {
		var p pieces
		for b := []byte(in); len(b) > 0; {
			n := min(int(step)+1, len(b))
			p = append(p, b[:n:n])
			b = b[n:]
		}
		got, rest, err := readAll(t, &p, 8, 1<<20)
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		want := model(in)
		var raw strings.Builder
		for i := range got {
			raw.WriteString(got[i].Raw)
			got[i].Raw = ""
		}
		if raw.String()+rest != in {
			t.Fatalf("bytes changed: %q + %q, want %q", raw.String(), rest, in)
		}
		if !slices.Equal(want, got) { // a diff of thousands of events takes minutes
			t.Fatalf("got %v\nwant %v", got, want)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	stream := []byte(strings.Repeat("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n", 8))
	src := bytes.NewReader(stream)
	r := NewReader(make([]byte, 4<<10), 1<<20)
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		src.Reset(stream)
		_ = r.Fill(src)
		for _, ok := r.Next(); ok; _, ok = r.Next() {
		}
	}
}
