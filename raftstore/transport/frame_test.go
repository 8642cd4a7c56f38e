package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

func drawEntry(t *rapid.T) *raft.Log {
	text := rapid.SliceOfN(rapid.Byte(), 1, 40)
	l := &raft.Log{
		Index: rapid.Uint64().Draw(t, "index"), Term: rapid.Uint64().Draw(t, "term"), Type: raft.LogType(rapid.Byte().Draw(t, "type")),
	}
	if rapid.Bool().Draw(t, "full") {
		l.Data, l.Extensions = text.Draw(t, "data"), text.Draw(t, "extensions")
		l.AppendedAt = time.Unix(0, rapid.Int64Min(1).Draw(t, "appended"))
	}
	return l
}

func TestRequestOfAStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Uint64()
		in := &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("planner-1"), Addr: []byte("10.0.0.1:8092")},
			Term:      number.Draw(t, "term"), PrevLogEntry: number.Draw(t, "before"), PrevLogTerm: number.Draw(t, "its term"),
			LeaderCommitIndex: number.Draw(t, "commit"),
		}
		for range rapid.IntRange(0, 5).Draw(t, "entries") {
			in.Entries = append(in.Entries, drawEntry(t))
		}
		frame, err := ReadFrame(bytes.NewReader(appendRequest(nil, in)), maxRequestFrame)
		if err != nil {
			t.Fatal(err)
		}
		out, err := parseRequest(frame)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(in, out); diff != "" {
			t.Error(diff)
		}
		for n := range frame {
			if _, err := parseRequest(frame[:n]); !errors.Is(err, ErrFrame) {
				t.Fatalf("%d of %d bytes: %v", n, len(frame), err)
			}
		}
	})
}

func TestAnswerOfAStream(t *testing.T) {
	for _, in := range []raft.AppendEntriesResponse{{}, {Term: 3, LastLog: 9, Success: true}, {NoRetryBackoff: true}} {
		for _, fault := range []error{nil, ErrFrame} {
			frame, err := ReadFrame(bytes.NewReader(appendAnswer(nil, &in, fault)), maxAnswerFrame)
			if err != nil {
				t.Fatal(err)
			}
			var out raft.AppendEntriesResponse
			said, err := parseAnswer(frame, &out)
			if err != nil || (said == nil) != (fault == nil) || said != nil && said.Error() != fault.Error() {
				t.Errorf("said %v, %v; want %v", said, err, fault)
			}
			if diff := cmp.Diff(in, out); diff != "" {
				t.Error(diff)
			}
		}
	}
}

// A request that is full leaves entries to the next one, and says so to whoever
// sends it; an entry larger than that goes alone.
func TestFullRequest(t *testing.T) {
	big := func(index uint64) *raft.Log { return &raft.Log{Index: index, Data: make([]byte, fullRequest*2/3)} }
	q := &raft.AppendEntriesRequest{Entries: []*raft.Log{big(1), big(2), big(3)}}
	frame := appendRequest(nil, q)
	out, err := parseRequest(frame[4:])
	if err != nil || len(out.Entries) != 1 || len(q.Entries) != 1 || len(frame) > fullRequest {
		t.Errorf("%v, %d entries of %d, %d bytes", err, len(out.Entries), len(q.Entries), len(frame))
	}
	q = &raft.AppendEntriesRequest{Entries: []*raft.Log{{Index: 1, Data: make([]byte, 2*fullRequest)}}}
	if out, err := parseRequest(appendRequest(nil, q)[4:]); err != nil || len(out.Entries) != 1 {
		t.Errorf("a large entry: %v", err)
	}
}

// A member that promises much and sends little costs little.
func TestFrameIsNotTrusted(t *testing.T) {
	promise := binary.LittleEndian.AppendUint32(nil, maxRequestFrame)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := ReadFrame(bytes.NewReader(promise), maxRequestFrame); err == nil {
		t.Error("a frame that did not come")
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4*frameStep {
		t.Errorf("%d bytes for a promise", grown)
	}
	if _, err := ReadFrame(bytes.NewReader(promise), maxAnswerFrame); !errors.Is(err, ErrFrame) {
		t.Errorf("beyond the limit: %v", err)
	}
	large := appendRequest(nil, &raft.AppendEntriesRequest{Entries: []*raft.Log{{Data: make([]byte, 3*frameStep)}}})
	if frame, err := ReadFrame(bytes.NewReader(large), maxRequestFrame); err != nil || !bytes.Equal(frame, large[4:]) {
		t.Errorf("a large frame: %v", err)
	}
}

func FuzzStreamFrames(f *testing.F) {
	f.Add(appendRequest(nil, &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: 1, Entries: []*raft.Log{{Index: 1, Data: []byte("x")}}}))
	f.Add(appendAnswer(nil, &raft.AppendEntriesResponse{Success: true}, ErrFrame))
	f.Fuzz(func(t *testing.T, text []byte) {
		frame, err := ReadFrame(bytes.NewReader(text), maxRequestFrame)
		if err != nil {
			return
		}
		if q, err := parseRequest(frame); err == nil {
			if again := appendRequest(nil, q); len(q.Entries) > 0 && !bytes.Equal(again[4:], frame) {
				// Times before 1678 and after 2262 are none.
				if back, err := parseRequest(again[4:]); err != nil || !cmp.Equal(q, back) {
					t.Errorf("%x became %x", frame, again[4:])
				}
			}
		}
		var a raft.AppendEntriesResponse
		_, _ = parseAnswer(frame, &a)
	})
}
