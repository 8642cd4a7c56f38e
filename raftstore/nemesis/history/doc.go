// Package history notes what clients of a cluster asked and were told, and
// says whether one machine that does one thing after the other could have told
// them the same: whether it is linearizable.
//
// It knows two kinds of object, registers with their versions and quotas of
// tenants, each with a model of what package planner makes of a command. Every
// register and every tenant is judged alone. An answer that never came, or says
// that the outcome is not known, may stand for an effect at any time after the
// call or for none. An answer that says that nothing was done is not noted: an
// effect of it would be one too many, and be found.
//
// It is for tests. Package nemesis uses it on clusters within a process, and
// the system's tests on real processes.
package history
