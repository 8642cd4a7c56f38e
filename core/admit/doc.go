// Package admit decides whether a request may begin. In its first form that is
// a [Gate]: a bound on requests in flight and on the memory of their bodies.
// Over a bound the answer is an immediate "busy", never an unbounded wait; a
// queue with deadlines stands between the two later, behind the same door.
//
// Which worker serves a request is core/route's business.
package admit
