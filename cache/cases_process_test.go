package cache_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestC36: processes that are stopped between their load and their fill. The bound is none: a fill of any age is refused, since
// its lease is gone.
func TestC36_StoppedProcessCannotFillWhatWasInvalidated(t *testing.T) {
	// What happens while the process stands.
	meanwhile := map[string]func(t *testing.T, w *world, p2 *instance){
		"invalidated": func(t *testing.T, w *world, p2 *instance) {
			mustDo(t, p2.Invalidate(t.Context(), "k"))
		},
		"invalidated and filled": func(t *testing.T, w *world, p2 *instance) {
			mustDo(t, p2.Invalidate(t.Context(), "k"))
			p2.mustGet(t, "k", v2)
			p2.client.Idle(t)
			w.holds(t, p2, "k", v2)
		},
		"longer than its lease, then invalidated": func(t *testing.T, w *world, p2 *instance) {
			w.awaitNoLease(t, p2, "k")
			mustDo(t, p2.Invalidate(t.Context(), "k"))
		},
		"longer than its lease, filled by another that was invalidated": func(t *testing.T, w *world, p2 *instance) {
			w.awaitNoLease(t, p2, "k")
			p2.mustGet(t, "k", v2)
			p2.client.Idle(t)
			mustDo(t, p2.Invalidate(t.Context(), "k"))
		},
	}
	for name, happens := range meanwhile {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p2, p3 := w.instance(t), w.instance(t)
			row := func(value string) {
				w.put("k", value)
				mustDo(t, w.server.Admin().Set(t.Context(), w.namespace+"row:k", value, 0).Err())
			}
			row(v1)
			p1 := w.startMember(t)
			p1.tell(t, "held get k")
			p1.hear(t, "loaded")
			p1.stop(t)
			row(v2)
			happens(t, w, p2)
			p1.tell(t, "open")
			p1.goOn(t)
			p1.hear(t, "got "+v1)
			p1.tell(t, "settle") // no message has reached P1: it may give v1 until it hears that Redis refused it
			p1.hear(t, "settled")
			p1.tell(t, "get k")
			if line := receive(t, "an answer of P1", p1.lines); line == "loaded" {
				p1.hear(t, "got "+v2)
			} else if line != "got "+v2 {
				t.Errorf("P1 %s after it was continued, want %s", line, v2)
			}
			p1.tell(t, "close")
			p1.hear(t, "closed")
			w.lacks(t, p2, "k", v1)
			p2.mustGet(t, "k", v2)
			p3.mustGet(t, "k", v2)
		})
	}
}

// awaitNoLease waits until Redis has nothing of a key: the lease of a process that stands has ended.
func (w *world) awaitNoLease(t testing.TB, i *instance, key string) {
	t.Helper()
	eventually(t, "the lease ends", func() bool {
		return w.server.Admin().Get(t.Context(), i.PhysicalKey(t, key)).Err() == redis.Nil
	})
}
