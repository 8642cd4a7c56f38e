package config

import (
	"fmt"
	"slices"
	"strings"
)

// Sources is where settings come from.
type Sources struct {
	// File is the path of a YAML file; empty reads none.
	File string
	// Env is the environment, as os.Environ gives it.
	Env []string
	// Flags is the command line; nil when there is none.
	Flags *Flags
}

// Setting is one effective value, with where it came from.
type Setting struct {
	Key     string `json:"key"`
	Value   string `json:"value"` // secrets by reference
	Origin  string `json:"origin"`
	Type    string `json:"type"`
	Default string `json:"default"`
	Env     string `json:"env"`
	Help    string `json:"help"`
}

// Effective is the outcome of a load.
type Effective struct {
	Config   Config
	Settings []Setting // in the table's order
	Warnings []string  // likely slips that are not errors
}

// Default reports whether nobody has set key.
func (e *Effective) Default(key string) bool {
	for i := range e.Settings {
		if e.Settings[i].Key == key {
			return e.Settings[i].Origin == originDefault
		}
	}
	return false
}

const originDefault = "default"

// Load reads all sources. The error, if any, is an *Error with every problem.
func Load(src Sources) (*Effective, error) {
	out := &Effective{}
	table := out.Config.table()
	var faults problems
	file := map[string]fileValue{}
	if src.File != "" {
		text, err := readBounded(src.File, maxFileBytes)
		if err != nil {
			faults.add("", "cannot read the configuration file: %v", err)
		} else {
			file = readFile(src.File, text, table, &faults)
		}
	}
	env := environment(src.Env)
	out.Warnings = misspelt(env, table)
	for i := range table {
		s := &table[i]
		if err := s.value.set(s.def); err != nil {
			panic(fmt.Sprintf("config: default of %s: %v", s.key, err)) // the table is wrong, not the user
		}
		out.Settings = append(out.Settings, s.resolve(file, env, src.Flags, &faults))
	}
	if len(faults.found) == 0 {
		out.Config.check(&faults)
	}
	if err := faults.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// resolve gives s its value from the strongest source that speaks. Weaker
// sources are checked too: a fault must not hide behind a flag.
func (s *setting) resolve(file map[string]fileValue, env map[string]string, flags *Flags, faults *problems) Setting {
	origin := originDefault
	try := func(where, shown, raw string) {
		if err := s.value.set(raw); err != nil {
			faults.add(where, "%s: %v", s.key, err)
			return
		}
		origin = shown
	}
	if v, ok := file[s.key]; ok {
		try(v.where, v.where, v.raw)
	}
	if raw, ok := env[s.env()]; ok {
		try(s.env(), "env "+s.env(), raw)
	}
	if flags != nil {
		if raw, ok := flags.set[s.key]; ok {
			name := "--" + flags.names[s.key]
			try(name, "flag "+name, raw)
		}
	}
	return Setting{
		Key: s.key, Value: s.value.text(), Origin: origin,
		Type: s.takes(), Default: s.def, Env: s.env(), Help: s.help,
	}
}

// environment keeps the variables that could be ours.
func environment(environ []string) map[string]string {
	out := map[string]string{}
	for _, entry := range environ {
		if name, raw, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			out[name] = raw
		}
	}
	return out
}

// EnvFile names the configuration file when no flag does.
const EnvFile = EnvPrefix + "CONFIG"

func misspelt(env map[string]string, table []setting) []string {
	known := make([]string, 0, len(table)+1)
	known = append(known, EnvFile)
	for i := range table {
		known = append(known, table[i].env())
	}
	var out []string
	for _, name := range sortedKeys(env) {
		switch near := nearName(name, known); {
		case near != "":
			out = append(out, fmt.Sprintf("environment variable %s is not a setting; did you mean %s?", name, near))
		case !slices.Contains(known, name) && inSection(name, table) && !platforms(name):
			out = append(out, fmt.Sprintf("environment variable %s is not a setting", name))
		}
	}
	return out
}

// inSection reports whether name begins as the settings of a section do.
func inSection(name string, table []setting) bool {
	return slices.ContainsFunc(sectionsOf(table), func(section string) bool {
		return strings.HasPrefix(name, EnvPrefix+strings.ToUpper(section)+"_")
	})
}

// platforms reports whether name looks like what container platforms set for a
// service that is called, say, yardmaster-gateway.
func platforms(name string) bool {
	return strings.Contains(name, "_SERVICE_") || strings.Contains(name, "_PORT_") || strings.HasSuffix(name, "_PORT")
}

// nearName compares what follows the common prefix, else everything that
// starts alike would be alike.
func nearName(name string, known []string) string {
	rest := make([]string, len(known))
	for i, k := range known {
		if k == name {
			return ""
		}
		rest[i] = strings.TrimPrefix(k, EnvPrefix)
	}
	near := Nearest(strings.TrimPrefix(name, EnvPrefix), rest)
	if near == "" || editDistance(strings.TrimPrefix(name, EnvPrefix), near) > 2 {
		return ""
	}
	return EnvPrefix + near
}
