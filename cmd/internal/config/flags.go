package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Flags is what a command line said. Its zero value says nothing.
type Flags struct {
	set   map[string]string // raw values by setting key
	names map[string]string // flag name by setting key
}

// Use puts the settings of a section on a command.
type Use struct {
	Section string
	// Prefix begins the flags' names; the command's own section has none.
	Prefix string
	// Except are settings of the section that mean nothing to the command.
	Except []string
}

// Bind defines on fs a flag for each setting of the sections, and returns
// where their values will be.
func Bind(fs *pflag.FlagSet, uses ...Use) *Flags {
	f := &Flags{set: map[string]string{}, names: map[string]string{}}
	table := new(Config).table()
	for _, use := range uses {
		for i := range table {
			s := &table[i]
			section, name := s.split()
			if section != use.Section || slices.Contains(use.Except, name) {
				continue
			}
			f.names[s.key] = use.Prefix + name
			flag := fs.VarPF(&flagValue{flags: f, setting: s}, use.Prefix+name, "", s.help)
			if s.takes() == "bool" {
				flag.NoOptDefVal = "true"
			}
		}
	}
	return f
}

// flagValue checks a value when it is given and keeps it for Load, which also
// knows the other sources.
type flagValue struct {
	flags   *Flags
	setting *setting
}

// String is the default, as help prints it.
func (v *flagValue) String() string {
	if v.setting == nil {
		return ""
	}
	return v.setting.def
}

// Type is the value's kind, as help prints it.
func (v *flagValue) Type() string { return v.setting.takes() }

// Set keeps raw if the setting accepts it. Lists may be given in several flags.
func (v *flagValue) Set(raw string) error {
	if err := v.setting.value.set(raw); err != nil {
		return err
	}
	key := v.setting.key
	if before, given := v.flags.set[key]; given && v.setting.value.list() {
		raw = strings.Join([]string{before, raw}, ",")
	}
	v.flags.set[key] = raw
	return nil
}
