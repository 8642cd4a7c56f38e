package assemble

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/core/admit"
	"github.com/yardmaster/yardmaster/core/dispatch"
	"github.com/yardmaster/yardmaster/core/errs"
	"github.com/yardmaster/yardmaster/core/planner"
	"github.com/yardmaster/yardmaster/core/quota"
	"github.com/yardmaster/yardmaster/core/unit"
	"github.com/yardmaster/yardmaster/raftstore"
)

// tenants says whose requests are, by a key that clients send or by a header that a
// trusted proxy sets, and how urgent they may be.
type tenants struct {
	header  string
	keys    map[[sha256.Size]byte]holder // by the hash of a key; nil without keys
	highest admit.Class                  // of whom no key says otherwise
}

// holder is whose a key is.
type holder struct {
	tenant  string
	highest admit.Class // that requests with the key may claim
}

const (
	maxTenantName = 128
	maxTenantKeys = 1 << 16
)

// ErrTenantKeys means that the file of tenants' keys cannot be used.
var ErrTenantKeys = errors.New("cannot use the tenants' keys")

// openTenants reads the keys. It is nil where there are no tenants, and nobody may
// claim more than usual.
func openTenants(c config.Gateway) (*tenants, error) {
	highest, _ := admit.ParseClass(c.MaxClass)
	if c.TenantHeader == "" && c.TenantKeys == "" && highest == admit.Standard {
		return nil, nil
	}
	t := &tenants{header: http.CanonicalHeaderKey(c.TenantHeader), highest: highest}
	if c.TenantKeys == "" {
		return t, nil
	}
	f, err := os.Open(c.TenantKeys)
	if err != nil {
		return nil, fmt.Errorf("gateway.tenant-keys: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	if err := t.read(f); err != nil {
		return nil, fmt.Errorf("gateway.tenant-keys: %s, %w", c.TenantKeys, err)
	}
	return t, nil
}

// read takes the file in.
func (t *tenants) read(r io.Reader) error {
	t.keys = map[[sha256.Size]byte]holder{}
	lines := bufio.NewScanner(r)
	n := 1
	for ; lines.Scan(); n++ {
		line := lines.Text()
		if n == 1 {
			line = strings.TrimPrefix(line, "\ufeff") // a mark that some editors begin a file with
		}
		if err := t.add(line); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w: %w", n, ErrTenantKeys, err)
	}
	return nil
}

// add takes a line of the file: a tenant, a key, or its hash after "sha256:", and perhaps
// the highest class that may be claimed with it.
func (t *tenants) add(line string) error {
	words := strings.Fields(line)
	// A remark begins with a word: a key may have the sign in it.
	if i := slices.IndexFunc(words, func(word string) bool { return word[0] == '#' }); i >= 0 {
		words = words[:i]
	}
	switch {
	case len(words) == 0:
		return nil
	case len(words) != 2 && len(words) != 3:
		return fmt.Errorf("%w: a line has a tenant, a key, and perhaps a class", ErrTenantKeys)
	case len(words[0]) > maxTenantName:
		return fmt.Errorf("%w: the tenant's name is longer than %d bytes", ErrTenantKeys, maxTenantName)
	case !quota.SoundTenant(words[0]):
		return fmt.Errorf("%w: the tenant's name has control characters, or is not UTF-8", ErrTenantKeys)
	case len(t.keys) == maxTenantKeys:
		return fmt.Errorf("%w: there are more than %d", ErrTenantKeys, maxTenantKeys)
	}
	whose := holder{tenant: words[0], highest: t.highest}
	if len(words) == 3 {
		class, ok := admit.ParseClass(words[2])
		if !ok {
			return fmt.Errorf("%w: the third word is a class: background, batch, standard or critical", ErrTenantKeys)
		}
		whose.highest = class
	}
	hash := sha256.Sum256([]byte(words[1]))
	if text, hashed := strings.CutPrefix(words[1], "sha256:"); hashed {
		b, err := hex.DecodeString(text)
		if err != nil || len(b) != sha256.Size {
			return fmt.Errorf("%w: a hash has 64 hexadecimal digits", ErrTenantKeys)
		}
		hash = [sha256.Size]byte(b)
	}
	if _, twice := t.keys[hash]; twice {
		return fmt.Errorf("%w: the key stands there twice", ErrTenantKeys)
	}
	t.keys[hash] = whose
	return nil
}

// of is the tenant of a request, empty for nobody's, and the highest class that it may
// claim. With keys, one without a known key is refused.
func (t *tenants) of(r *http.Request) (string, admit.Class, error) {
	if t.keys != nil {
		key, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !bearer {
			key = r.Header.Get("X-Api-Key")
		}
		whose, known := t.keys[sha256.Sum256([]byte(key))]
		if !known || key == "" {
			return "", 0, &errs.Error{Kind: errs.Unauthorized, Client: "the API key is missing or not known", Code: "invalid_api_key"}
		}
		return whose.tenant, whose.highest, nil
	}
	if t.header == "" {
		return "", t.highest, nil
	}
	name := r.Header.Get(t.header)
	if len(name) > maxTenantName {
		return "", 0, &errs.Error{Kind: errs.BadRequest, Client: fmt.Sprintf("the tenant's name is longer than %d bytes", maxTenantName), Code: "invalid_tenant"}
	}
	if !quota.SoundTenant(name) {
		return "", 0, &errs.Error{Kind: errs.BadRequest, Client: "the tenant's name has control characters, or is not UTF-8", Code: "invalid_tenant"}
	}
	return name, t.highest, nil
}

// serve has a gateway's requests belong to tenants.
func (t *tenants) serve() func(*http.Request) (string, admit.Class, error) {
	if t == nil {
		return nil
	}
	return t.of
}

// budgeted is a fleet whose cluster keeps quotas.
type budgeted interface{ quotas() *raftstore.Store }

// admission sets up who may come in.
func admission(p Process, c config.Gateway, f Fleet, deps *dispatch.Deps) error {
	policy, err := admit.PolicyNamed(c.Admission)
	if err != nil {
		return fmt.Errorf("gateway.admission: %w", err)
	}
	deps.Admission = policy
	if by, ok := f.(governed); ok && by.governor() != nil {
		deps.Admission = by.governor().Admission(policy)
	}
	if by, ok := f.(budgeted); ok {
		deps.Quota = admit.NewSpender(admit.SpenderConfig{Window: quota.WindowSeconds * time.Second}, ledger{by.quotas}, p.Clock)
	}
	return nil
}

// ledger is a cluster's quotas as a gateway spends them.
type ledger struct{ store func() *raftstore.Store }

// Quota implements admit.Granter.
func (l ledger) Quota(tenant string) (admit.Quota, bool) {
	q, ok := l.store().State().Quota(tenant)
	if !ok {
		return admit.Quota{}, false
	}
	return admit.Quota{Limit: q.Limit, Window: q.Window}, true
}

// Grant implements admit.Granter.
func (l ledger) Grant(ctx context.Context, tenant string, window uint64, tokens unit.Tokens) (unit.Tokens, error) {
	store := l.store()
	res, err := store.Propose(ctx, planner.GrantQuota{Tenant: tenant, Holder: store.Holder(), Window: window, Tokens: tokens})
	if err != nil {
		return 0, err
	}
	switch err := res.Err(); {
	case errors.Is(err, planner.ErrUnknownTenant):
		return tokens, nil // its quota has just ended
	case errors.Is(err, planner.ErrStaleWindow), errors.Is(err, planner.ErrClock):
		return 0, fmt.Errorf("%w: %w", admit.ErrClock, err)
	case errors.Is(err, planner.ErrFull):
		return 0, nil // no room for another holder: this window gives it nothing
	case err != nil:
		return 0, err
	}
	return res.Granted, nil
}
