package route

import (
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster/yardmaster/core/cost"
	"github.com/yardmaster/yardmaster/core/unit"
)

// Mode says whether prompts may be computed on other workers than the one that
// generates.
type Mode uint8

// The modes.
const (
	Auto   Mode = iota // per request, where it pays
	Never              // always aggregated
	Always             // disaggregated whenever a pair exists
)

var modeNames = [...]string{"auto", "never", "always"}

// String is the mode's name in flags and configuration.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "unknown"
}

// ParseMode reads a mode's name.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if s == name {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown disaggregation mode %q: use auto, never or always", s)
}

// Config sets how a router decides. Zero fields take their defaults.
type Config struct {
	Policy Policy // default Sticky
	// Chooser names the policy of each decision; nil leaves all to Policy.
	Chooser Chooser
	Mode    Mode
	// MinPrompt is the fewest uncached prompt tokens for which Auto considers
	// moving KV; default 256. Below it the prompt disturbs a decode worker less
	// than two legs cost.
	MinPrompt unit.Tokens
	// Slack is how much longer than the aggregated one the disaggregated first
	// token may be predicted to take, as a share; default 0.1. It is the price
	// paid for not stalling the tokens that the decode worker is generating.
	Slack float64
	// BusyTokens is how many more prompt tokens may queue at the prefill worker
	// than at the decode worker while their rates are unknown; default 4096.
	BusyTokens unit.Tokens
	// Link predicts transfers; default 1 ms set-up, 1 GB/s, efficiency 1.
	Link cost.Link
	// Seed makes ties reproducible.
	Seed uint64
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var faults []error
	if int(c.Mode) >= len(modeNames) {
		faults = append(faults, errors.New("unknown disaggregation mode"))
	}
	if c.MinPrompt < 0 {
		faults = append(faults, errors.New("minimum prompt is negative"))
	}
	if !(c.Slack >= 0 && c.Slack <= 10) {
		faults = append(faults, errors.New("slack is not in [0, 10]"))
	}
	if c.BusyTokens < 0 {
		faults = append(faults, errors.New("busy tokens is negative"))
	}
	if !(c.Link.BytesPerSecond >= 0) || !(c.Link.Efficiency >= 0 && c.Link.Efficiency <= 1) || c.Link.Setup < 0 {
		faults = append(faults, errors.New("link: set-up and bandwidth must not be negative, efficiency must be in [0, 1]"))
	}
	return errors.Join(faults...)
}

// usualLink is a link of which nothing is known.
func usualLink() cost.Link {
	return cost.Link{Setup: time.Millisecond, BytesPerSecond: 1e9, Efficiency: 1}
}

func (c Config) withDefaults() Config {
	if c.Policy == nil {
		c.Policy = Sticky{}
	}
	if c.MinPrompt == 0 {
		c.MinPrompt = 256
	}
	if c.Slack == 0 {
		c.Slack = .1
	}
	if c.BusyTokens == 0 {
		c.BusyTokens = 4096
	}
	if c.Link == (cost.Link{}) {
		c.Link = usualLink()
	}
	return c
}
