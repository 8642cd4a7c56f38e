package config

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/fleet"
	"github.com/yardmaster/yardmaster/core/native"
	"github.com/yardmaster/yardmaster/core/route"
	"github.com/yardmaster/yardmaster/core/scale"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/core/wire/edge"
	"github.com/yardmaster/yardmaster/server/admin"
)

// value is one typed place in a Config.
type value interface {
	// set parses raw into the place, or leaves it and says what is accepted.
	set(raw string) error
	// text is what is there now. Secrets are masked.
	text() string
	// kind is the type's name in help and reference.
	kind() string
	// list reports whether several values are taken, joined by commas.
	list() bool
}

// oneOf names what one item of a value takes.
func oneOf(v value) string { return strings.TrimSuffix(v.kind(), ",...") }

type typed[T any] struct {
	place  *T
	name   string
	many   bool
	parse  func(string) (T, error)
	format func(T) string
}

func (v typed[T]) set(raw string) error {
	parsed, err := v.parse(raw)
	if err == nil {
		*v.place = parsed
	}
	return err
}

func (v typed[T]) text() string { return v.format(*v.place) }
func (v typed[T]) kind() string { return v.name }
func (v typed[T]) list() bool   { return v.many }

func keep(s string) string { return s }

func text(place *string) value {
	return typed[string]{place: place, name: "text", format: keep, parse: func(raw string) (string, error) { return raw, nil }}
}

func path(place *string) value {
	return typed[string]{place: place, name: "path", format: keep, parse: func(raw string) (string, error) {
		if strings.ContainsRune(raw, 0) {
			return "", errors.New("a path cannot contain a zero byte")
		}
		return raw, nil
	}}
}

func choice(place *string, choices ...string) value {
	return typed[string]{place: place, name: strings.Join(choices, "|"), format: keep, parse: func(raw string) (string, error) {
		if !slices.Contains(choices, raw) {
			return "", fmt.Errorf("%q is not one of %s", raw, strings.Join(choices, ", "))
		}
		return raw, nil
	}}
}

// Policies are the names of the native routing policies, the default one first.
func Policies() []string {
	var names []string
	for _, p := range route.Policies() {
		names = append(names, p.Name())
	}
	return names
}

// policy takes the name of a routing policy, the file of one in Wasm, or a blend of
// several.
func policy(place *string) value {
	return typed[string]{place: place, name: "policy", format: keep, parse: func(raw string) (string, error) {
		if !NamesModule(raw) {
			_, err := route.PolicyNamed(raw)
			return raw, err
		}
		_, err := PolicyParts(raw)
		return raw, err
	}}
}

// moduleSuffix is how files of policies in Wasm end.
const moduleSuffix = ".wasm"

// NamesModule reports whether a routing policy is, or has in it, a file of a policy in
// Wasm. Its path has no commas, equals signs or brackets.
func NamesModule(raw string) bool { return strings.Contains(raw, moduleSuffix) }

// PolicyPart is one of the policies that are weighed against each other: a native
// policy, or a file.
type PolicyPart struct {
	native.Part
	File bool
}

// PolicyParts reads a routing policy that names files as it reads native policies.
func PolicyParts(raw string) (parts []PolicyPart, err error) {
	read, err := native.ParseParts(raw)
	if err != nil {
		return nil, err
	}
	for _, p := range read {
		part := PolicyPart{p, strings.HasSuffix(p.Name, moduleSuffix)}
		if !part.File {
			if _, err := route.PolicyWith(p.Name, p.Params); err != nil {
				return nil, err
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// admissions are the names of the native admission policies, the default one first.
func admissions() []string {
	var names []string
	for _, p := range admit.Policies() {
		names = append(names, p.Name())
	}
	return names
}

func admission(place *string) value {
	return typed[string]{place: place, name: "policy", format: keep, parse: func(raw string) (string, error) {
		_, err := admit.PolicyNamed(raw)
		return raw, err
	}}
}

func autoscaling(place *string) value {
	return typed[string]{place: place, name: "policy", format: keep, parse: func(raw string) (string, error) {
		if raw == ScaleOff {
			return raw, nil
		}
		if _, err := scale.PolicyNamed(raw); err != nil {
			return "", fmt.Errorf("%w; %s sizes nothing", err, ScaleOff)
		}
		return raw, nil
	}}
}

func class(place *string) value {
	return typed[string]{place: place, name: "class", format: keep, parse: func(raw string) (string, error) {
		if _, ok := admit.ParseClass(raw); !ok {
			return "", fmt.Errorf("unknown class %q: use background, batch, standard or critical", raw)
		}
		return raw, nil
	}}
}

func boolean(place *bool) value {
	return typed[bool]{place: place, name: "bool", format: strconv.FormatBool, parse: func(raw string) (bool, error) {
		switch raw {
		case "true":
			return true, nil
		case "false":
			return false, nil
		default:
			return false, fmt.Errorf("%q is neither true nor false", raw)
		}
	}}
}

func integer(place *int, least, most int) value {
	return typed[int]{place: place, name: "number", format: strconv.Itoa, parse: func(raw string) (int, error) {
		n, err := strconv.Atoi(raw)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not a whole number", raw)
		case n < least || n > most:
			return 0, fmt.Errorf("%d is outside %d to %d", n, least, most)
		default:
			return n, nil
		}
	}}
}

func duration(place *time.Duration, least, most time.Duration) value {
	return typed[time.Duration]{place: place, name: "duration", format: time.Duration.String, parse: func(raw string) (time.Duration, error) {
		d, err := time.ParseDuration(raw)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%q is not a duration such as 500ms, 30s or 5m", raw)
		case d < least || d > most:
			return 0, fmt.Errorf("%v is outside %v to %v", d, least, most)
		default:
			return d, nil
		}
	}}
}

var byteUnits = []struct {
	suffix string
	size   unit.Bytes
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

func size(place *unit.Bytes, least, most unit.Bytes) value {
	return typed[unit.Bytes]{place: place, name: "size", format: formatSize, parse: func(raw string) (unit.Bytes, error) {
		n, err := parseSize(raw)
		switch {
		case err != nil:
			return 0, err
		case n < least || n > most:
			return 0, fmt.Errorf("%s is outside %s to %s", formatSize(n), formatSize(least), formatSize(most))
		default:
			return n, nil
		}
	}}
}

func parseSize(raw string) (unit.Bytes, error) {
	digits, factor := raw, unit.Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(raw, u.suffix); ok {
			digits, factor = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(factor) {
		return 0, fmt.Errorf("%q is not a size such as 512KiB, 64MiB or 2GiB", raw)
	}
	return unit.Bytes(n) * factor, nil
}

func formatSize(n unit.Bytes) string {
	for _, u := range byteUnits {
		if n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(int64(n/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(n), 10) + "B"
}

// address takes host:port; an empty one is allowed where the setting says so.
func address(place *string, optional bool) value {
	return typed[string]{place: place, name: "host:port", format: keep, parse: func(raw string) (string, error) {
		if raw == "" && optional {
			return "", nil
		}
		_, port, err := net.SplitHostPort(raw)
		if err != nil {
			return "", fmt.Errorf("%q is not an address such as 127.0.0.1:8080 or :8080", raw)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", fmt.Errorf("port %q of %q is not a number from 0 to 65535", port, raw)
		} else if strconv.FormatUint(n, 10) != port {
			return "", fmt.Errorf("port %q of %q has a leading zero or sign", port, raw)
		}
		return raw, nil
	}}
}

// addresses takes several of host:port, with a port that can be dialled.
func addresses(place *[]string) value {
	var one string
	parse := address(&one, false).(typed[string]).parse
	return list(place, "host:port", func(raw string) error {
		if _, err := parse(raw); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(raw) // parse has seen it
		if host == "" || port == "0" {
			return fmt.Errorf("%q cannot be connected to: it needs a host and a port", raw)
		}
		return nil
	})
}

// advertise takes a host, or host:port, by which others reach a listener.
func advertise(place *string) value {
	parse := address(place, true).(typed[string]).parse
	return typed[string]{place: place, name: "host[:port]", format: keep, parse: func(raw string) (string, error) {
		if raw == "" || !strings.Contains(raw, ":") {
			return raw, nil
		}
		if ip := net.ParseIP(raw); ip != nil { // an IPv6 address without a port
			return raw, nil
		}
		if host, _, err := net.SplitHostPort(raw); err == nil && host == "" {
			return "", fmt.Errorf("%q names no host", raw)
		}
		return parse(raw)
	}}
}

// nodeName takes the name of a member of the cluster: it stands in certificates.
func nodeName(place *string, optional bool) value {
	return typed[string]{place: place, name: "name", format: keep, parse: func(raw string) (string, error) {
		if raw == "" && optional || fleet.CheckNodeID(raw) == nil {
			return raw, nil
		}
		return "", fmt.Errorf("%q is not a node's name: 1 to 63 of a-z, 0-9, dot and hyphen, a letter or digit first", raw)
	}}
}

// loopback takes host:port that other machines cannot reach, or nothing.
func loopback(place *string) value {
	parse := address(place, true).(typed[string]).parse
	return typed[string]{place: place, name: "host:port", format: keep, parse: func(raw string) (string, error) {
		if raw == "" {
			return "", nil
		}
		if _, err := parse(raw); err != nil {
			return "", err
		}
		return raw, admin.CheckAddress(raw)
	}}
}

// names takes names of models as requests carry them.
func names(place *[]string) value {
	return list(place, "NAME", func(raw string) error {
		if raw == "" || len(raw) > edge.MaxModelName {
			return fmt.Errorf("a model name has 1 to %d bytes, not %d", edge.MaxModelName, len(raw))
		}
		return nil
	})
}

func urls(place *[]string) value {
	return list(place, "URL", func(raw string) error {
		u, err := url.Parse(raw)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return fmt.Errorf("%q is not a URL such as http://127.0.0.1:8000", raw)
		}
		if u.User != nil {
			return errors.New("a URL must not hold a password")
		}
		if p := u.Port(); p != "" {
			if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
				return fmt.Errorf("port %s of %q is not from 1 to 65535", p, raw)
			}
		}
		return nil
	})
}

// paths takes several files.
func paths(place *[]string) value {
	return list(place, "path", func(raw string) error {
		if raw == "" || strings.ContainsRune(raw, 0) {
			return fmt.Errorf("%q is not a path", raw)
		}
		return nil
	})
}

func labels(place *[]string) value {
	return list(place, "key=value", func(raw string) error {
		if key, _, ok := strings.Cut(raw, "="); !ok || key == "" {
			return fmt.Errorf("%q is not a label such as zone=a", raw)
		}
		return nil
	})
}

func tokenizers(place *[]string) value {
	return list(place, "MODEL=PATH", func(raw string) error {
		if model, file, _ := strings.Cut(raw, "="); model == "" || file == "" {
			return fmt.Errorf("%q is not a model and a file such as llama=/models/tokenizer.json", raw)
		}
		return nil
	})
}

const maxListItems = 1024

func list(place *[]string, name string, check func(string) error) value {
	return typed[[]string]{
		place: place, name: name + ",...", many: true,
		format: func(items []string) string { return strings.Join(items, ",") },
		parse: func(raw string) ([]string, error) {
			if raw == "" {
				return nil, nil
			}
			items := strings.Split(raw, ",")
			if len(items) > maxListItems {
				return nil, fmt.Errorf("%d items are more than %d", len(items), maxListItems)
			}
			for i, item := range items {
				items[i] = strings.TrimSpace(item)
				if err := check(items[i]); err != nil {
					return nil, err
				}
			}
			return items, nil
		},
	}
}

// Secret is a value that is never printed. In settings it is given by
// reference: env:NAME or file:PATH.
type Secret struct{ ref, value string }

// Reveal is the secret itself. It goes into a header and nowhere else.
func (s Secret) Reveal() string { return s.value }

// String is the reference, so that printing a Secret reveals nothing.
func (s Secret) String() string { return s.ref }

const maxSecretBytes = 64 << 10

func secret(place *Secret) value {
	return typed[Secret]{place: place, name: "env:NAME|file:PATH", format: Secret.String, parse: func(raw string) (Secret, error) {
		scheme, name, _ := strings.Cut(raw, ":")
		switch {
		case raw == "":
			return Secret{}, nil
		case scheme == "env" && name != "":
			v, ok := os.LookupEnv(name)
			if !ok || v == "" {
				return Secret{}, fmt.Errorf("the environment has no %s", name)
			}
			return Secret{ref: raw, value: v}, nil
		case scheme == "file" && name != "":
			v, err := readBounded(name, maxSecretBytes)
			if err != nil {
				return Secret{}, err
			}
			return Secret{ref: raw, value: strings.TrimRight(string(v), "\r\n")}, nil
		default:
			return Secret{}, errors.New("a secret is given by reference: env:NAME or file:PATH")
		}
	}}
}
