package collect

// Busy is the number of trips under way.
func (c *Collector) Busy() (n int) {
	for _, q := range c.queues() {
		q.mu.Lock()
		for _, w := range q.workers {
			if !w.began.IsZero() {
				n++
			}
		}
		q.mu.Unlock()
	}
	return n
}

// Waiting is the number of calls that wait for a trip.
func (c *Collector) Waiting() (n int) {
	for _, q := range c.queues() {
		q.mu.Lock()
		n += len(q.waiting)
		q.mu.Unlock()
	}
	return n
}
