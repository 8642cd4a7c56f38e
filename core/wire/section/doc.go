// Package section frames snapshots: a magic, then typed sections, each with a
// version, a length and a checksum.
//
// The wire form of a section is
//
//	type byte (bit 0x80: may be skipped), version byte, length uint32,
//	payload, CRC-32C uint32 over all of the section before it
//
// little-endian. Reading is safe on hostile bytes: memory grows with what
// arrives, never with what a length claims. What sections mean, which come in
// which order, and that the last one has come, is their owner's to know.
package section
