package model

import (
	"flag"
	"testing"

	"github.com/yardmaster/yardmaster/gpu/cpu/batch"
)

// The benchmarks need the real model. They report tokens per second; -cpu sets
// the threads. For a comparison with another engine run both in turn.

func benchTokens(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(1000 + i*37%40000)
	}
	return tokens
}

// benchKernels picks the loops that are measured.
var benchKernels = flag.String("kernels", "", "kernels of the benchmarks: generic, avx2 or avx512; empty means the best")

func benchPrefill(b *testing.B, n int) {
	m := open(b, modelPath(b), Options{Kernels: *benchKernels})
	r := newRig(b, m, 16, n/16+1)
	seq := sequence{tokens: benchTokens(n)}
	span := r.span(&seq, n, true)
	for b.Loop() {
		r.step(span)
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
}

func BenchmarkPrefill128(b *testing.B)  { benchPrefill(b, 128) }
func BenchmarkPrefill512(b *testing.B)  { benchPrefill(b, 512) }
func BenchmarkPrefill2048(b *testing.B) { benchPrefill(b, 2048) }

// benchDecode decodes batch sequences from a context of 64 to 192 tokens.
func benchDecode(b *testing.B, n int) {
	const start, end = 64, 192
	m := open(b, modelPath(b), Options{Kernels: *benchKernels})
	r := newRig(b, m, 16, n*end/16+1)
	seqs := make([]sequence, n)
	for i := range seqs {
		seqs[i].tokens = benchTokens(end)
		r.step(r.span(&seqs[i], start, true))
	}
	spans := make([]batch.Span, n)
	for b.Loop() {
		for i := range seqs {
			if seqs[i].done == end {
				seqs[i].done = start
			}
			spans[i] = r.span(&seqs[i], 1, true)
		}
		r.step(spans...)
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
}

func BenchmarkDecode1(b *testing.B) { benchDecode(b, 1) }
func BenchmarkDecode4(b *testing.B) { benchDecode(b, 4) }
func BenchmarkDecode8(b *testing.B) { benchDecode(b, 8) }

func BenchmarkOpen(b *testing.B) {
	path := modelPath(b)
	for b.Loop() {
		m, err := Open(path, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
