// Package pd joins the CPU engine's prefill and decode legs to the transfer
// layer: a pool and its account become [transfer.Memory], a transfer id and a
// peer become the [batch.Exporter] or [batch.Importer] of one request.
//
// Which leg goes where is core/dispatch's business, how pages move is
// gpu/transfer's, and what to do when they do not is gpu/cpu/batch's.
package pd
