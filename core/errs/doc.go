// Package errs pairs what a client may read with what an operator must know.
//
// An [Error] has a [Kind], from which the front doors derive the status; a
// sentence for the client, free of addresses, prompts and secrets; and the
// cause for the log. Packages wrap causes with %w on the way up and build an
// Error once, at the place that knows the kind. Sentinels that callers test
// belong to the package that returns them, not here.
package errs
