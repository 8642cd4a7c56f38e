// Package assemble joins the rooms: it builds a [Planner], a [Gateway], a
// [Worker] and the laptop's [Dev] out of packages that do not know one another.
//
// Each part is started by one function, which returns when the part is in
// service or says why it is not, and is ended by Close, which drains first.
// What the settings mean is decided here; what they are called, in
// cmd/internal/config. Nothing here reads flags, prints, or handles signals:
// that is cmd/yardmaster.
package assemble
