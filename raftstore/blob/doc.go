// Package blob holds the bytes of policies by their digest, on one node, and
// fetches from another what this one lacks.
//
// A [Shelf] is a folder, or memory on a node that keeps nothing. [Shelf.Put]
// returns when the bytes are as durable as the folder's disk makes them;
// [Shelf.Get] never gives bytes that are not the digest's: a damaged file is
// removed and counts as missing. What no version names is removed after a while
// ([Shelf.Sweep]).
//
// [Fetch] takes a blob piece by piece from a [Source]. It believes nothing: not
// the size, not the length of a piece, and the bytes only by their digest.
//
// The package knows neither quorums nor which blobs are wanted: package raftstore
// does. What is in the bytes is judged by policies/vet.
package blob
