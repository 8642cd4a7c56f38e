package trace

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// rows writes requests without what the generator knows of conversations.
func rows(requests []Request) string {
	var b strings.Builder
	for _, r := range requests {
		ids := strings.ReplaceAll(fmt.Sprint(r.Blocks), " ", ",")
		fmt.Fprintf(&b, `{"timestamp":%d,"input_length":%d,"output_length":%d,"hash_ids":%s}`+"\n", r.At.Milliseconds(), r.Input, r.Output, ids)
	}
	return b.String()
}

// Conversations that are not named are found again from the prompts' blocks: of
// nearly all requests whose earlier turn filled a block of its own.
func TestConversationsAreFound(t *testing.T) {
	made := Generate(1, 3000)
	read, err := Read(strings.NewReader(rows(made)))
	if err != nil {
		t.Fatal(err)
	}
	last := map[uint64]int{} // the latest turn of a conversation
	goOn, found, strangers := 0, 0, 0
	owner := map[uint64]uint64{} // what is read → what it is
	for i := range made {
		before, again := last[made[i].Session]
		if again && len(made[before].whole()) > 1 {
			goOn++
			if read[i].Session == read[before].Session {
				found++
			}
		}
		last[made[i].Session] = i
		if o, ok := owner[read[i].Session]; ok && o != made[i].Session {
			strangers++
		}
		owner[read[i].Session] = made[i].Session
	}
	t.Logf("of %d turns that go on %d are found, %d requests are in another's", goOn, found, strangers)
	if goOn < 500 || found != goOn || strangers > 0 {
		t.Errorf("of %d turns that go on %d are found, %d requests are in another's", goOn, found, strangers)
	}
}

func TestConversationsAreNamed(t *testing.T) {
	const row = `{"timestamp": 0, "input_length": 5, "output_length": 1, "session": %s}` + "\n"
	var all strings.Builder
	for _, s := range []string{`"a"`, `7`, `"a"`, `null`, `"7"`, `""`} {
		fmt.Fprintf(&all, row, s)
	}
	got, err := Read(strings.NewReader(all.String()))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range got {
		if r.Session == 0 {
			t.Errorf("row %d has no conversation", i)
		}
	}
	if got[0].Session != got[2].Session || got[1].Session != got[4].Session || got[0].Session == got[1].Session || got[3].Session == got[5].Session {
		t.Errorf("%v", got)
	}
	for _, bad := range []string{`[]`, `{}`, `true`} {
		if _, err := Read(strings.NewReader(fmt.Sprintf(row, bad))); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
