package pages

import (
	"bytes"
	"os"
	"strconv"
)

// Available is about how many bytes can be allocated without swapping: what the
// kernel says, or the limit of the process's own group when that is less. It is 0
// where nothing says.
func Available() int64 {
	least := int64(0)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		least = kilobytes(text, "MemAvailable:")
	}
	for _, name := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// Without a limit the file says "max", or a number beyond all memory.
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	return least
}

// kilobytes finds the line of /proc/meminfo that begins with name, and returns
// its value in bytes; 0 when there is none.
func kilobytes(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64); err == nil && n < 1<<50 {
			return n << 10
		}
	}
	return 0
}
