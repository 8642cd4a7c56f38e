package member

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// parse reads "a+ b" as voter a and non-voter b, each at its own address, or at
// another one after an "@".
func parse(list string) []Member {
	var out []Member
	for f := range strings.FieldsSeq(list) {
		id, addr, moved := strings.Cut(f, "@")
		id, voter := strings.CutSuffix(id, "+")
		if !moved {
			addr = id + ":1"
		}
		out = append(out, Member{ID: id, Addr: addr, Voter: voter})
	}
	return out
}

func TestNext(t *testing.T) {
	tests := []struct {
		name, want, have, self string
		step                   string // empty is none
	}{
		{"the same", "a+ b+ c", "a+ b+ c", "a", ""},
		{"order is no difference", "c b+ a+", "a+ b+ c", "a", ""},
		{"a voter comes before a non-voter", "a+ b c+", "a+", "a", "put c+"},
		{"a non-voter comes", "a+ b", "a+", "a", "put b"},
		{"a vote is given", "a+ b+", "a+ b", "a", "put b+"},
		{"a vote is taken", "a+ b", "a+ b+", "a", "demote b+"},
		{"the dead go first", "a+ b+ d+", "a+ b+ c+", "a", "remove c+"},
		{"a node has moved", "a+ b+@new", "a+ b+", "a", "put b+"},
		{"an unknown address moves nobody", "a+ b+@", "a+ b+", "a", ""},
		{"nobody comes to an unknown address", "a+ b+@", "a+", "a", ""},
		{"the leader itself goes last", "b+ c+", "a+ b+ d", "a", "remove d"},
		{"others come before the leader goes", "b+ c+", "a+ b+", "a", "put c+"},
		{"the leader goes", "b+ c+", "a+ b+ c+", "a", "hand over a"},
		{"the leader loses its vote", "a b+", "a+ b+", "a", "hand over a"},
		{"the last wanted voter stays", "b+", "a+", "a", "put b+"},
		{"nobody goes before one is there to stay", "d+", "a+ b+ c+", "a", "put d+"},
		{"an empty wish is not believed", "", "a+ b+", "a", ""},
		{"nor one without a vote", "a b", "a+ b+", "a", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if s, ok := Next(parse(tt.want), parse(tt.have), tt.self); ok {
				got = s.Do.String() + " " + s.Member.ID
				if s.Member.Voter {
					got += "+"
				}
			}
			if got != tt.step {
				t.Errorf("Next = %q, want %q", got, tt.step)
			}
		})
	}
}

// Step after step any configuration becomes the wanted one, whoever leads, and
// in between there is always a voter that is wanted to stay.
func TestNextReachesWhatIsWanted(t *testing.T) {
	ids := []string{"a", "b", "c", "d", "e"}
	config := rapid.Custom(func(t *rapid.T) []Member {
		var out []Member
		for _, id := range ids {
			switch rapid.IntRange(0, 3).Draw(t, id) {
			case 1:
				out = append(out, Member{id, id + ":1", true})
			case 2:
				out = append(out, Member{id, id + ":1", false})
			case 3:
				out = append(out, Member{id, id + ":2", true})
			}
		}
		return out
	}).Filter(func(s []Member) bool { return voters(s) > 0 })
	rapid.Check(t, func(t *rapid.T) {
		want, have := config.Draw(t, "want"), config.Draw(t, "have")
		shared := sharedVoters(want, have) > 0
		for range 50 {
			var leaders []string // any voter may lead
			for _, s := range have {
				if s.Voter {
					leaders = append(leaders, s.ID)
				}
			}
			leads := rapid.SampledFrom(leaders).Draw(t, "leader")
			step, ok := Next(want, have, leads)
			if !ok {
				if !cmp.Equal(sorted(want), sorted(have)) {
					t.Fatalf("stuck at %v with leader %s, want %v", have, leads, want)
				}
				return
			}
			have = carryOut(t, have, step, leads, want)
			if voters(have) == 0 || (shared && sharedVoters(want, have) == 0) {
				t.Fatalf("after %+v no voter stays: %v of %v", step, have, want)
			}
			shared = shared || sharedVoters(want, have) > 0
		}
		t.Fatalf("not there after 50 steps: %v, want %v", have, want)
	})
}

func sharedVoters(want, have []Member) (n int) {
	for _, h := range have {
		if w, ok := find(want, h.ID); ok && w.Voter && h.Voter {
			n++
		}
	}
	return n
}

func carryOut(t *rapid.T, have []Member, s Step, leads string, want []Member) []Member {
	out := slices.DeleteFunc(slices.Clone(have), func(h Member) bool { return h.ID == s.Member.ID && s.Do != HandOver })
	switch s.Do {
	case Put:
		return append(out, s.Member)
	case Demote:
		s.Member.Voter = false
		return append(out, s.Member)
	case Remove:
		if s.Member.ID == leads {
			t.Fatalf("leader %s removes itself", leads)
		}
	case HandOver:
		// The next leader is another voter, and may do what this one could not.
		for _, h := range have {
			if w, ok := find(want, h.ID); ok && w.Voter && h.Voter && h.ID != leads {
				step, ok := Next(want, have, h.ID)
				if !ok {
					t.Fatalf("leader %s hands over to %s, which has nothing to do", leads, h.ID)
				}
				return carryOut(t, have, step, h.ID, want)
			}
		}
		t.Fatalf("leader %s hands over to nobody", leads)
	}
	return out
}

func TestJudge(t *testing.T) {
	leader := Leader{ID: "a", Term: 5, Commit: 5000, Heartbeat: 300 * time.Millisecond, Grace: 2500 * time.Millisecond}
	set := Defaults()
	well := Seen{ID: "b", Voter: true, Term: 5, Contact: 100 * time.Millisecond, Applied: 4990}
	tests := []struct {
		name   string
		edit   func(*Seen)
		reason string // a part of it; empty is healthy
	}{
		{"well", func(*Seen) {}, ""},
		{"slow once", func(s *Seen) { s.Silent = 2 * time.Second }, ""},
		{"silent", func(s *Seen) { s.Silent = 3 * time.Second }, "silent for 3s"},
		{"stopped", func(s *Seen) { s.Fault = "disk stalled" }, "disk stalled"},
		{"never heard of a leader", func(s *Seen) { s.Contact = -1 }, "not heard of a leader"},
		{"lost the leader", func(s *Seen) { s.Contact = 700 * time.Millisecond }, "700ms ago"},
		{"an older term", func(s *Seen) { s.Term = 4 }, "term 4"},
		{"a newer term", func(s *Seen) { s.Term = 6 }, "term 6"},
		{"just close enough", func(s *Seen) { s.Applied = 4000 }, ""},
		{"behind", func(s *Seen) { s.Applied = 3999 }, "1001 entries behind"},
		{"ahead of what the leader has just read", func(s *Seen) { s.Applied = 5001 }, ""},
		{"the leader is in contact with itself", func(s *Seen) { s.ID, s.Contact, s.Term = "a", -1, 0 }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := well
			tt.edit(&s)
			v := Judge(epoch, Verdict{}, leader, []Seen{s}, set)
			h := v.Members[0]
			if h.Healthy != (tt.reason == "") || !strings.Contains(h.Reason, tt.reason) || h.Well != h.Healthy {
				t.Errorf("%+v, want reason %q", h, tt.reason)
			}
		})
	}
}

func TestHealthNeedsStability(t *testing.T) {
	set := Defaults()
	leader := Leader{ID: "a", Term: 1, Heartbeat: time.Second, Grace: time.Second}
	var v Verdict
	at := func(second int, silent time.Duration) Health {
		v = Judge(epoch.Add(time.Duration(second)*time.Second), v, leader, []Seen{{ID: "b", Voter: true, Term: 1, Silent: silent}}, set)
		return v.Members[0]
	}
	if h := at(0, 0); !h.Healthy || !h.Since.Equal(epoch.Add(-set.StableAfter)) {
		t.Errorf("first seen well: %+v", h)
	}
	if h := at(1, 2*time.Second); h.Healthy || h.Well || !h.Since.Equal(epoch.Add(time.Second)) {
		t.Errorf("silent: %+v", h)
	}
	for _, second := range []int{2, 5, 11} {
		if h := at(second, 0); h.Healthy || !h.Well || !strings.Contains(h.Reason, "well again") {
			t.Errorf("after %d s: %+v", second, h)
		}
	}
	if h := at(12, 0); !h.Healthy || h.Reason != "" {
		t.Errorf("stable again: %+v", h)
	}
}

// verdict of voters and gateways by their silence; silent ones are unhealthy.
func verdict(silences map[string]time.Duration) Verdict {
	var v Verdict
	for id, silent := range silences {
		v.Members = append(v.Members, Health{ID: id, Voter: id[0] != 'g', Healthy: silent == 0, Silent: silent})
	}
	v.count()
	return v
}

func TestQuorumMargin(t *testing.T) {
	const dead = time.Hour
	tests := []struct {
		silences map[string]time.Duration
		healthy  bool
		canLose  int
	}{
		{map[string]time.Duration{"a": 0}, true, 0},
		{map[string]time.Duration{"a": 0, "b": 0}, true, 0},
		{map[string]time.Duration{"a": 0, "b": 0, "c": 0}, true, 1},
		{map[string]time.Duration{"a": 0, "b": 0, "c": dead}, false, 0},
		{map[string]time.Duration{"a": 0, "b": dead, "c": dead}, false, 0},
		{map[string]time.Duration{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0}, true, 2},
		{map[string]time.Duration{"a": 0, "b": 0, "c": 0, "g": dead}, true, 1},
		{map[string]time.Duration{"g": 0}, false, 0},
	}
	for _, tt := range tests {
		if v := verdict(tt.silences); v.Healthy != tt.healthy || v.CanLose != tt.canLose {
			t.Errorf("%v: healthy %v, can lose %d; want %v, %d", tt.silences, v.Healthy, v.CanLose, tt.healthy, tt.canLose)
		}
	}
}

func TestReapAndCleanup(t *testing.T) {
	const day = 25 * time.Hour
	v := verdict(map[string]time.Duration{"a": 0, "b": 0, "c": 0, "d": day, "e": day + 1, "g1": 61 * time.Second, "g2": 59 * time.Second})
	if got := Reap(v, time.Minute); !slices.Equal(got, []string{"g1"}) {
		t.Errorf("Reap = %v", got)
	}
	on := Defaults()
	on.CleanupDeadVoters = true
	tests := []struct {
		name string
		v    Verdict
		set  Settings
		want string
	}{
		{"off by default", v, Defaults(), ""},
		{"the longest dead first", v, on, "e"},
		{"not below the minimum", verdict(map[string]time.Duration{"a": 0, "b": 0, "c": day}), on, ""},
		{"nobody is dead", verdict(map[string]time.Duration{"a": 0, "b": 0, "c": 0, "d": time.Hour}), on, ""},
		{"too few healthy ones", verdict(map[string]time.Duration{"a": 0, "b": 0, "c": day, "d": day, "e": day}), on, ""},
	}
	for _, tt := range tests {
		if got, ok := Cleanup(tt.v, tt.set); got != tt.want && ok || ok != (tt.want != "") {
			t.Errorf("%s: Cleanup = %q, %v; want %q", tt.name, got, ok, tt.want)
		}
	}
}

func TestLevel(t *testing.T) {
	for _, tt := range []struct {
		levels []uint32
		want   uint32
		ok     bool
	}{{nil, 0, false}, {[]uint32{2}, 2, true}, {[]uint32{3, 1, 2}, 1, true}, {[]uint32{2, 0}, 0, false}} {
		if got, ok := Level(tt.levels); got != tt.want || ok != tt.ok {
			t.Errorf("Level(%v) = %d, %v", tt.levels, got, ok)
		}
	}
}

func TestSettings(t *testing.T) {
	s := Defaults()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	s.CleanupDeadVoters, s.StableAfter = true, 1500*time.Millisecond
	got, err := ParseSettings(s.Encode())
	if err != nil || got != s {
		t.Errorf("parsed %+v, %v", got, err)
	}
	if got, err := ParseSettings([]byte(`{"max_lag":7,"of_a_newer_release":true}`)); err != nil || got.MaxLag != 7 || got.MinVoters != 3 {
		t.Errorf("a part: %+v, %v", got, err)
	}
	for _, bad := range []string{``, `[]`, `{"min_voters":0}`, `{"dead_after_s":1e300}`, `{"dead_after_s":5}`, `{"stable_after_s":-1}`, `{"max_lag":0}`} {
		if s, err := ParseSettings([]byte(bad)); err == nil {
			t.Errorf("%q gives %+v", bad, s)
		}
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add(Defaults().Encode())
	f.Add([]byte(`{"dead_after_s":1e400}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSettings(b)
		if err != nil {
			return
		}
		if again, err := ParseSettings(s.Encode()); err != nil || again.MinVoters != s.MinVoters || again.MaxLag != s.MaxLag {
			t.Errorf("%+v becomes %+v, %v", s, again, err)
		}
	})
}
