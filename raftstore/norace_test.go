//go:build !race

package raftstore

const slower = 1
