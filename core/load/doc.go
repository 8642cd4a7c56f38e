// Package load counts this gateway's own requests in flight, per worker
// incarnation and phase, and remembers which incarnations it could not reach,
// which refuse, and which give no tokens.
//
// A [Table] has one [Slot] per (worker id, epoch). A slot's numbers are
// absolute and its own: nothing is incremented elsewhere, so nothing can leak,
// and a restarted worker, being another epoch, begins at zero and unejected.
// Work is counted by a [Reservation], taken before the first byte leaves and
// closed once on every path.
//
// [Table.Columns] lines the slots up with a fleet view, index for index, for
// core/route to read. What workers say of themselves is in fleet.Samples.
package load
