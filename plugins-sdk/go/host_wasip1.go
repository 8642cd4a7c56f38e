package ym

import "unsafe"

//go:wasmimport ym1 log
func importLog(level uint32, line unsafe.Pointer, size uint32)

//go:wasmimport ym1 now_ms
func nowMillis() int64

//go:wasmimport ym1 rand_u64
func random() uint64

//go:wasmimport ym1 counter_add
func counterAdd(id uint32, n int64)

//go:wasmimport ym1 hist_observe
func histObserve(id uint32, v float64)

//go:wasmimport ym1 kv_get
func importGet(scope uint32, key unsafe.Pointer, keySize uint32, buf unsafe.Pointer, bufSize uint32) int32

//go:wasmimport ym1 kv_set
func importSet(scope uint32, key unsafe.Pointer, keySize uint32, value unsafe.Pointer, valueSize uint32) int32

//go:wasmimport ym1 kv_add
func importAdd(scope uint32, key unsafe.Pointer, keySize uint32, delta int64) int64

func logLine(level Level, line string) {
	importLog(uint32(level), unsafe.Pointer(unsafe.StringData(line)), uint32(len(line)))
}

func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func kvGet(s Scope, key, buf []byte) int32 {
	return importGet(uint32(s), at(key), uint32(len(key)), at(buf), uint32(len(buf)))
}

func kvSet(s Scope, key, value []byte) int32 {
	return importSet(uint32(s), at(key), uint32(len(key)), at(value), uint32(len(value)))
}

func kvAdd(s Scope, key []byte, delta int64) int64 {
	return importAdd(uint32(s), at(key), uint32(len(key)), delta)
}

//go:wasmimport wasi_snapshot_preview1 proc_exit
func importExit(status uint32)

func abort() { importExit(1) }
