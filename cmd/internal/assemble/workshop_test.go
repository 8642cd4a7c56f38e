package assemble

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/yardmaster/yardmaster/cmd/internal/config"
)

// What a killed process has left is removed at the next start; what is in use, new or
// somebody else's is not.
func TestLeftWorkshopsAreSwept(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	there := func(dir string) bool {
		_, err := os.Stat(dir)
		return !errors.Is(err, fs.ErrNotExist)
	}
	folder := func(name string, age time.Duration) string {
		dir := tmp + "/" + name
		if err := os.MkdirAll(dir+"/code", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, time.Now(), time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	left, fresh, other := folder(ownCache+"1", time.Hour), folder(ownCache+"2", 0), folder("else-3", time.Hour)
	first, err := openWorkshop(Process{}, config.Policy{}, "", byItself)
	if err != nil {
		t.Fatal(err)
	}
	if there(left) || !there(fresh) || !there(other) {
		t.Errorf("left over %v, new %v, another's %v", there(left), there(fresh), there(other))
	}
	if err := os.Chtimes(first.cache, time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	second, err := openWorkshop(Process{}, config.Policy{}, "", byItself)
	if err != nil {
		t.Fatal(err)
	}
	if !there(first.cache) {
		t.Error("a folder in use was removed")
	}
	if err := errors.Join(first.close(), second.close()); err != nil || there(first.cache) || there(second.cache) {
		t.Errorf("at the end: %v", err)
	}
}
