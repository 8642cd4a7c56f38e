package member

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Settings are what operators decide about the leader's care of the members.
type Settings struct {
	// CleanupDeadVoters lets the leader remove voters that are long dead, as long
	// as a majority of healthy ones stays. Off by default: a machine that is only
	// being repaired would have to be added anew.
	CleanupDeadVoters bool
	// DeadAfter is how long a voter must have been silent to be removed.
	DeadAfter time.Duration
	// MinVoters is how many voters a cleanup leaves at least.
	MinVoters int
	// MaxLag is how many entries a healthy member may be behind.
	MaxLag uint64
	// StableAfter is how long a member must be well to count as healthy.
	StableAfter time.Duration
}

// Defaults are the settings of a new cluster.
func Defaults() Settings {
	return Settings{DeadAfter: 24 * time.Hour, MinVoters: 3, MaxLag: 1000, StableAfter: 10 * time.Second}
}

// Validate reports every problem at once.
func (s Settings) Validate() error {
	var faults []error
	if s.DeadAfter < time.Minute {
		faults = append(faults, fmt.Errorf("dead after %v: a voter is not dead within a minute", s.DeadAfter))
	}
	if s.MinVoters < 1 {
		faults = append(faults, fmt.Errorf("%d voters at least: one is needed", s.MinVoters))
	}
	if s.MaxLag < 1 {
		faults = append(faults, errors.New("a lag of no entry at all"))
	}
	if s.StableAfter < 0 || s.StableAfter > time.Hour {
		faults = append(faults, fmt.Errorf("stable after %v: between 0 and an hour", s.StableAfter))
	}
	return errors.Join(faults...)
}

// settingsForm is how settings stand in a register.
type settingsForm struct {
	CleanupDeadVoters bool    `json:"cleanup_dead_voters"`
	DeadAfterS        float64 `json:"dead_after_s"`
	MinVoters         int     `json:"min_voters"`
	MaxLag            uint64  `json:"max_lag"`
	StableAfterS      float64 `json:"stable_after_s"`
}

// Encode is the settings as a register holds them.
func (s Settings) Encode() []byte {
	b, err := json.Marshal(settingsForm{
		CleanupDeadVoters: s.CleanupDeadVoters, DeadAfterS: s.DeadAfter.Seconds(), MinVoters: s.MinVoters,
		MaxLag: s.MaxLag, StableAfterS: s.StableAfter.Seconds(),
	})
	if err != nil { // numbers only
		panic(fmt.Sprintf("member: settings do not encode: %v", err))
	}
	return b
}

// ParseSettings reads what Encode wrote, or a part of it: what is missing has
// its default.
func ParseSettings(b []byte) (Settings, error) {
	d := Defaults()
	form := settingsForm{
		CleanupDeadVoters: d.CleanupDeadVoters, DeadAfterS: d.DeadAfter.Seconds(), MinVoters: d.MinVoters,
		MaxLag: d.MaxLag, StableAfterS: d.StableAfter.Seconds(),
	}
	if err := json.Unmarshal(b, &form); err != nil {
		return Settings{}, fmt.Errorf("autopilot settings: %w", err)
	}
	s := Settings{
		CleanupDeadVoters: form.CleanupDeadVoters, DeadAfter: seconds(form.DeadAfterS), MinVoters: form.MinVoters,
		MaxLag: form.MaxLag, StableAfter: seconds(form.StableAfterS),
	}
	return s, s.Validate()
}

// seconds is s as a duration; what no duration can hold becomes invalid.
func seconds(s float64) time.Duration {
	if s > (100*365*24*time.Hour).Seconds() || s != s {
		return -1
	}
	return time.Duration(s * float64(time.Second))
}
