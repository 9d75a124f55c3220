package broker

import "sync"

// line gathers what waits for the same thing, so that one round of it serves all of them. Those that come while a round is under way are served by the next. Its zero
// value is ready.
type line[T any] struct {
	mu      sync.Mutex
	waiting []T
	running bool
}

// join adds w, and sees to it that round is called with it, and with all that wait beside it, from a goroutine of b; one round at a time.
func (l *line[T]) join(b *Broker, w T, round func([]T)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting = append(l.waiting, w); l.running {
		return
	}
	l.running = true
	b.spawn(func() {
		for {
			l.mu.Lock()
			next := l.waiting
			l.waiting = nil
			l.running = len(next) > 0
			l.mu.Unlock()
			if len(next) == 0 {
				return
			}
			round(next)
		}
	})
}
