package replica

// What follows is for those who drive the loop by hand instead of with Run: Turn whenever Woken or the deadline says so, then
// NeedSync and, later, SyncDone.

// Woken tells, once, whether something has arrived that calls for a turn before the deadline.
func (r *Replica) Woken() bool {
	select {
	case <-r.wake:
		return true
	default:
		return false
	}
}

// Stop makes the next turn the last one: it answers everything, and nothing is taken in behind it.
func (r *Replica) Stop() {
	r.mu.Lock()
	r.leaving, r.closed = true, true
	r.mu.Unlock()
	r.signal()
}
