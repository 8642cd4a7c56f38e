package assemble

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
	"github.com/yardmaster/yardmaster/policies/vet"
)

// workshop is where a process checks policies and compiles them.
type workshop struct {
	checks *vet.Pipeline
	cache  string // folder of compiled code
	by     judge
	own    bool     // the folder is thrown away at the end
	lock   *os.File // of a folder of its own
}

// openWorkshop makes the folder of compiled code, below dataDir where there is one,
// and reads the trusted keys, which count where by is byItself.
func openWorkshop(p Process, c config.Policy, dataDir string, by judge) (*workshop, error) {
	w := &workshop{cache: c.CacheDir, by: by}
	trust, err := trustOf(c)
	if err != nil {
		return nil, err
	}
	switch {
	case w.cache != "":
		err = os.MkdirAll(w.cache, 0o700)
	case dataDir != "":
		w.cache = filepath.Join(dataDir, "policies", "compiled")
		err = os.MkdirAll(w.cache, 0o700)
	default:
		w.own = true
		sweepWorkshops(os.TempDir())
		w.cache, w.lock, err = ownWorkshop()
	}
	if err != nil {
		return nil, fmt.Errorf("policy.cache-dir: %w", err)
	}
	settings := vet.Config{Trusted: trust.Keys, AllowUnsigned: trust.Unsigned, Elsewhere: by == byPlanners, Cache: w.cache, Command: p.PolicyChild}
	if w.checks, err = vet.New(settings); err != nil {
		return nil, errors.Join(fmt.Errorf("policy: %w", err), w.close())
	}
	return w, nil
}

// judge is who says whose uploads count.
type judge bool

const (
	byItself   judge = false // this process, by its own settings
	byPlanners judge = true  // the planners, by theirs
)

// trustOf is whose uploads count by the settings.
func trustOf(c config.Policy) (vet.Trust, error) {
	trust := vet.Trust{Unsigned: c.AllowUnsigned}
	for _, file := range c.TrustedKeys {
		key, err := trustedKey(file)
		if err != nil {
			return vet.Trust{}, fmt.Errorf("policy.trusted-key: %w", err)
		}
		trust.Keys = append(trust.Keys, key)
	}
	return trust, nil
}

const (
	// ownCache is what the name of a folder begins with that ends with its process.
	ownCache = "yardmaster-policies-"
	// newCache is for how long a folder may not be locked yet.
	newCache = time.Minute
)

// ownWorkshop makes a folder that is locked for as long as this process lives.
func ownWorkshop() (dir string, lock *os.File, err error) {
	if dir, err = os.MkdirTemp("", ownCache); err != nil {
		return "", nil, err
	}
	if lock, err = os.Open(dir); err == nil {
		if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return dir, lock, nil
		}
		err = errors.Join(err, lock.Close())
	}
	return "", nil, errors.Join(err, os.RemoveAll(dir))
}

// sweepWorkshops removes what processes of this user that were killed have left in a
// folder for temporary files: a lock ends with its process, whatever became of that.
// What cannot be removed stays.
func sweepWorkshops(dir string) {
	found, err := filepath.Glob(filepath.Join(dir, ownCache+"*"))
	if err != nil {
		return
	}
	for _, path := range found {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < newCache {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Getuid() {
			continue
		}
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(path)
		}
		_ = f.Close()
	}
}

// trustedKey reads a public key; it is called by its file's name.
func trustedKey(file string) (vet.Key, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return vet.Key{}, err
	}
	public, err := vet.ParsePublicKey(text)
	if err != nil {
		return vet.Key{}, fmt.Errorf("%s: %w", file, err)
	}
	name := strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	return vet.Key{Name: name, Public: public}, nil
}

// close removes what is not to be kept.
func (w *workshop) close() error {
	if w == nil || !w.own {
		return nil
	}
	err := os.RemoveAll(w.cache)
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	return err
}
