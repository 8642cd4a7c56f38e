// Package load counts the requests that this gateway has in flight, per worker
// incarnation and phase, holds beside them what other gateways say they have, and
// remembers which incarnations could not be reached, which refuse, and which give
// no tokens.
//
// A [Table] has one [Slot] per (worker id, epoch). A slot's own numbers are
// absolute: nothing is incremented elsewhere, so nothing can leak, and a
// restarted worker, being another epoch, begins at zero and unejected. Work is
// counted by a [Reservation], taken before the first byte leaves and closed once
// on every path.
//
// [Table.Columns] lines the slots up with a fleet view, index for index, for
// core/route to read. What workers say of themselves is in fleet.Samples.
//
// Gateways tell each other by way of the leader. [Changes] reads a table's own
// numbers as a [Vector], a [Merger] adds the gateways up and gives each [Member]
// what the others have, and [Table.SetOthers] takes that in. Nothing here sends;
// server/hub does.
package load
