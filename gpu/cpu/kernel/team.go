package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Team is a fixed number of threads that share steps. The caller of Run is one
// of them. Between steps the others spin for a moment, because the next step
// of a forward pass is near, then sleep.
type Team struct {
	job     atomic.Pointer[job]
	members []*member
	over    chan struct{} // wakes the caller of Run; at most one is on the way
	done    sync.WaitGroup
}

type member struct {
	asleep atomic.Bool
	wake   chan struct{}
}

// job is one step: tasks 0 to n-1, taken in order by whoever is free.
type job struct {
	n        int64
	do       func(task, thread int)
	next     atomic.Int64
	finished atomic.Int64
	idle     atomic.Bool // the caller sleeps on over
	over     chan struct{}
	stop     bool
}

// spins is how often a thread looks before it sleeps: about 10 microseconds,
// longer than most gaps within a pass. Looking longer loses where processors
// are shared, for it keeps them from those that are waited for.
const spins = 20_000

// NewTeam starts a team of threads threads, at least one. The caller closes it.
func NewTeam(threads int) *Team {
	t := &Team{over: make(chan struct{}, 1)}
	idle := &job{}
	t.job.Store(idle)
	for i := range max(threads, 1) - 1 {
		m := &member{wake: make(chan struct{}, 1)}
		t.members = append(t.members, m)
		t.done.Go(func() { t.serve(m, i+1, idle) })
	}
	return t
}

// Threads is the number of threads, the caller's included.
func (t *Team) Threads() int { return len(t.members) + 1 }

// Run calls do for every task from 0 to n-1 and returns when all are done. Tasks
// run concurrently on threads numbered from 0. One Run at a time.
func (t *Team) Run(n int, do func(task, thread int)) {
	if n <= 0 {
		return
	}
	if len(t.members) == 0 || n == 1 {
		for i := range n {
			do(i, 0)
		}
		return
	}
	j := &job{n: int64(n), do: do, over: t.over}
	t.start(j)
	j.work(0)
	j.wait()
}

// Close ends the threads and waits for them. No Run may be under way or follow.
func (t *Team) Close() {
	t.start(&job{stop: true})
	t.done.Wait()
}

func (t *Team) start(j *job) {
	t.job.Store(j)
	for _, m := range t.members {
		if m.asleep.CompareAndSwap(true, false) {
			m.wake <- struct{}{}
		}
	}
}

func (t *Team) serve(m *member, thread int, last *job) {
	for {
		last = t.await(m, last)
		if last.stop {
			return
		}
		last.work(thread)
	}
}

// await returns the first job it sees that is not last.
func (t *Team) await(m *member, last *job) *job {
	for {
		for range spins {
			if j := t.job.Load(); j != last {
				return j
			}
		}
		// A job stored before this is seen by the check; one stored after finds
		// asleep set and sends.
		m.asleep.Store(true)
		if t.job.Load() == last || !m.asleep.CompareAndSwap(true, false) {
			<-m.wake
		}
	}
}

// work does tasks until none is left to take.
func (j *job) work(thread int) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return
		}
		j.do(int(i), thread)
		if j.finished.Add(1) == j.n && j.idle.CompareAndSwap(true, false) {
			j.over <- struct{}{}
		}
	}
}

// wait returns when every task is finished.
func (j *job) wait() {
	for i := range spins {
		if j.finished.Load() == j.n {
			return
		}
		if i%1024 == 1023 {
			runtime.Gosched() // the thread that works may need this processor
		}
	}
	j.idle.Store(true)
	if j.finished.Load() != j.n || !j.idle.CompareAndSwap(true, false) {
		<-j.over
	}
}
