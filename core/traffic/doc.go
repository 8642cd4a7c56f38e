// Package traffic carries what gateways count of the requests they serve to the
// leader, which sizes pools by it (core/lead, core/scale).
//
// A gateway reads its own metrics ([Read]) and tells what changed ([Reporter]). Its
// word is absolute: counts since its start, by model, and histograms whose buckets
// are those of the metrics. The leader keeps one [Page] for each gateway in a [Book];
// a page vanishes with its gateway. A [Meter] makes rates of what a page says at two
// times, so that nothing is counted twice or leaks, whoever leads or restarts: the
// first word of an incarnation is where counting begins.
//
// It neither sends (server/hub does) nor decides. What a gateway served between its
// last word and its death is not counted.
package traffic
