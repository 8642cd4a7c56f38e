package batch

import "github.com/yardmaster/yardmaster/gpu/cpu/kv"

// Exporter carries a prefill leg's KV away as it is computed. Its methods, but
// for From, are called by the engine's goroutine, in order, and must not block.
// Once Submit has accepted the request, exactly one of Finish and Abort is
// called.
type Exporter interface {
	// From is the first token position the destination lacks, known before the
	// request is submitted. It is a multiple of the block size.
	From() int
	// Computed says that layer holds valid KV for token positions [from, to), in
	// blocks (the sequence's table). The pages stay valid until release.
	Computed(layer, from, to int, blocks []kv.BlockID)
	// Finish says that all layers of all positions have been announced. hidden is
	// the last position's hidden state [Dim]; the exporter copies it. It calls
	// release once, from any goroutine, when it no longer reads the pages.
	Finish(hidden []float32, release func())
	// Abort ends the export without Finish. When it returns, or at the latest when
	// it calls release, no page is read any more.
	Abort(reason error, release func())
}

// Destination is where an import must land.
type Destination struct {
	Prompt []int32      // the whole prompt
	From   int          // first token position wanted, a multiple of the block size
	Blocks []kv.BlockID // the blocks for positions From.. of Prompt, reserved
	Gens   []uint32     // their generations
}

// Importer brings a decode leg's KV from elsewhere. Once Submit has accepted the
// request, Start is called, or Cancel, or Start and later Cancel, each at most
// once.
type Importer interface {
	// Start begins. It must not block. When the transfer is over it calls done
	// once, from any goroutine: with the last position's hidden state [Dim] when
	// every page was written and verified, or with the reason it was not. After
	// done nothing writes to the destination. The engine copies hidden. An error
	// that is a Reasoned names its reason.
	Start(dst Destination, done func(hidden []float32, err error))
	// Cancel ends the transfer. When it returns nothing writes to the destination
	// and done, if Start was called, has been called. It may block. Without Start
	// it says that nothing is to be moved: the engine has the prompt's KV already,
	// or the request ended before it had blocks.
	Cancel()
}
