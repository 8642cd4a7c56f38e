// Package cost predicts how long things take: an engine's steps from fitted
// coefficients ([EngineTime]), a prompt on a worker of known rate
// ([PrefillTime]), a KV transfer over a link ([Link]), and how many tokens a
// text of known length has ([Ratio]).
//
// Predictions are for comparing choices; what was not measured is unknown, not
// zero. Choosing is core/route's, measuring gpu/cpu's and gpu/transfer's.
package cost
