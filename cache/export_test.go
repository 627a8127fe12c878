package cache

import (
	"testing"
	"time"
)

func (c *clock) serverNow() (earliest, latest int64, ok bool) {
	m := c.moment()
	return m.earliest, m.latest, m.known
}

// Idle waits until no flight, fill, delete or loader is under way.
func (c *Client) Idle(t testing.TB) {
	t.Helper()
	if left := c.work.Wait(10*time.Second) + c.deletes.Wait(10*time.Second) + c.loaders.Wait(10*time.Second); left > 0 {
		t.Fatalf("%d goroutines of the client are still busy", left)
	}
}

// DropLocal voids all that the local tiers of a client hold.
func (c *Client) DropLocal() { c.epoch.Add(1) }

// DeleteDigest is what calls of the script that deletes hold, once the server knows it.
func DeleteDigest() string { return digest(preludeLua + deleteLua) }

// PhysicalKey returns the key under which Redis holds an entry.
func (c *Cache[K, V]) PhysicalKey(t testing.TB, key K) string {
	t.Helper()
	physical, _, err := c.keys.physical(key)
	if err != nil {
		t.Fatal(err)
	}
	return physical
}

// ShiftServerClock makes what the client knows of the server's clock wrong by d.
func (c *Client) ShiftServerClock(d time.Duration) {
	e := *c.clock.server.Load()
	e.lower, e.upper = e.lower+int64(d), e.upper+int64(d)
	c.clock.server.Store(&e)
}

// RetryEvery sets the time between two tries of what Redis did not confirm, before the first cache is made.
func (c *Client) RetryEvery(d time.Duration) { c.retryEvery = d }

// Remember sets how many deletes that Redis did not confirm are remembered, before the first.
func (c *Cache[K, V]) Remember(n int) { c.unconfirmed.most = n }
