package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-nearside/nearside/cache"
)

// tour takes the steps. Each says what happened, its name first; what was expected and not seen goes into errs.
type tour struct {
	a, b    *service
	db      *sql.DB
	queries atomic.Int64
	gate    sync.Mutex  // who holds it holds all loads between their query and their answer
	pulled  atomic.Bool // the cables to Redis
	errs    []error
}

func (t *tour) run(ctx context.Context, out io.Writer) error {
	began := time.Now()
	steps := []func(context.Context) string{t.tiers, t.stampede, t.overtake, t.batch, t.update, t.outage}
	for i, take := range steps {
		text := take(ctx)
		if err := errors.Join(t.errs...); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		fmt.Fprintf(out, "\n%d. %s\n", i+1, strings.ReplaceAll(text, "\n", "\n   "))
	}
	fmt.Fprintf(out, "\nall %d steps seen in %.1f s\n", len(steps), time.Since(began).Seconds())
	return nil
}

func (t *tour) tiers(ctx context.Context) string {
	t.expect("tier of the first Get on a", t.get(ctx, t.a, 1).Tier, cache.TierLoader)
	// A load answers its callers first, and fills the tiers right behind.
	t.until("tier of the next Get on a", func() any { return t.get(ctx, t.a, 1).Tier }, cache.TierLocal)
	t.expect("tier of the first Get on b", t.get(ctx, t.b, 1).Tier, cache.TierRedis)
	t.expect("queries", t.queries.Load(), 1)
	return `Two tiers
The first Get on a ran the loader. The next was a local hit: it did not leave the process.
The first Get on b was a Redis hit. Queries: 1.`
}

func (t *tour) stampede(ctx context.Context) string {
	joined := func() any { return t.a.products.Stats().Joined + t.b.products.Stats().Joined }
	before := joined().(uint64)
	t.gate.Lock()
	var callers errgroup.Group
	for i := range 100 {
		s := []*service{t.a, t.b}[i%2]
		callers.Go(func() error { _, err := s.products.Get(ctx, 2); return err })
	}
	t.until("callers who joined another", joined, before+98)
	t.gate.Unlock()
	t.ok(callers.Wait())
	t.expect("queries", t.queries.Load(), 2)
	return `One load for all
100 callers, 50 on each instance, asked at once for a key that was nowhere. Queries: 1.
On each instance 49 joined the first one, and these two shared one load.`
}

func (t *tour) overtake(ctx context.Context) string {
	var early Product
	var caller errgroup.Group
	t.gate.Lock()
	caller.Go(func() (err error) { early, err = t.b.products.Get(ctx, 3); return err })
	t.until("queries", func() any { return t.queries.Load() }, 3)
	_, err := setPrice(ctx, t.db, 3, 333)
	t.ok(err)
	t.ok(t.a.products.Invalidate(ctx, 3)) // after the commit
	t.gate.Unlock()
	t.ok(caller.Wait())
	t.until("fills under way on b", func() any { return t.b.products.Stats().InFlight }, 0)
	t.expect("price for the caller who came before", early.Cents, 300)
	t.expect("fills refused on b", t.b.products.Stats().FillsRefused, 1)
	t.expect("price on a after Invalidate", t.get(ctx, t.a, 3).Value.Cents, 333)
	t.expect("price on b after Invalidate", t.get(ctx, t.b, 3).Value.Cents, 333)
	return `An Invalidate wins over a load in flight
b's loader had read the price 300 when a committed 333 and invalidated the key.
b's caller had asked before that and got 300, but no tier kept it. Fills refused: 1.
The next Get on a and on b got 333.`
}

func (t *tour) batch(ctx context.Context) string {
	ids := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 404}
	queries, loads := t.queries.Load(), t.a.products.Stats().Loads
	found, err := t.a.products.GetMany(ctx, ids)
	t.ok(err)
	t.expect("products found", len(found), 9)
	t.expect("product 404", found[404], Product{})
	t.expect("ids asked of the loader", t.a.products.Stats().Loads-loads, 7)
	t.until("local hits of the next GetMany", func() any {
		hits := t.a.products.Stats().LocalHits
		_, err := t.a.products.GetMany(ctx, ids)
		t.ok(err)
		return t.a.products.Stats().LocalHits - hits
	}, 10)
	t.expect("queries", t.queries.Load()-queries, 1)
	return `Many keys, one query
GetMany of 10 ids, 3 of them cached: one query for the other 7. Product 404 does not exist, so the map holds 9.
GetMany again: 10 local hits, since "not found" is cached, too. Queries: 0.`
}

func (t *tour) update(ctx context.Context) string {
	t.until("tier of product 5 on b", func() any { return t.get(ctx, t.b, 5).Tier }, cache.TierLocal)
	queries, began := t.queries.Load(), time.Now()
	_, err := t.a.products.Update(ctx, 5, func(ctx context.Context) (Product, error) { return setPrice(ctx, t.db, 5, 555) })
	t.ok(err)
	t.expect("price on a", t.get(ctx, t.a, 5).Value.Cents, 555)
	var onB cache.Result[Product]
	t.until("price on b", func() any { onB = t.get(ctx, t.b, 5); return onB.Value.Cents }, 555)
	t.expect("tier of the new price on b", onB.Tier, cache.TierRedis)
	t.expect("queries", t.queries.Load()-queries, 0)
	return fmt.Sprintf(`Update writes through
Update on a committed the price 555 and put it into both tiers: the next Get on a got it.
b held the old price in its local tier, and was told to forget it: after %.1f ms b got 555 from Redis. Queries: 0.`,
		time.Since(began).Seconds()*1000)
}

func (t *tour) outage(ctx context.Context) string {
	budget, slowest := t.a.client.Config().ReadBudget, time.Duration(0)
	t.pulled.Store(true)
	for id := int64(11); id <= 13; id++ {
		began := time.Now()
		t.expect("reason for the loader", t.get(ctx, t.a, id).Why, cache.WhyRedis)
		slowest = max(slowest, time.Since(began))
	}
	t.expect(fmt.Sprintf("%v is within the budget", slowest), slowest < budget+500*time.Millisecond, true) // with room for a busy machine
	_, err := setPrice(ctx, t.db, 1, 111)
	t.ok(err)
	err = t.a.products.Invalidate(ctx, 1)
	t.expect("ErrUnconfirmed from Invalidate", errors.Is(err, cache.ErrUnconfirmed), true)
	t.expect("price on a without Redis", t.get(ctx, t.a, 1).Value.Cents, 111)

	t.pulled.Store(false)
	t.until("deletes that a owes with Redis back", func() any { return t.a.products.Stats().UnconfirmedKeys }, 0)
	t.expect("price on b with Redis back", t.get(ctx, t.b, 1).Value.Cents, 111)
	t.until("tier on a with Redis back", func() any { return t.get(ctx, t.a, 1).Tier }, cache.TierLocal)
	t.until("tier on b with Redis back", func() any { return t.get(ctx, t.b, 1).Tier }, cache.TierLocal)
	return fmt.Sprintf(`Redis goes away and comes back
Without Redis the loader answered 3 of 3 Gets, each within %d ms (ReadBudget: %v).
Invalidate returned ErrUnconfirmed: Redis may still hold the old price. The next Get on a got the new one.
With Redis back the delete was made behind, b got the new price, and both had local hits again.`, slowest.Milliseconds(), budget)
}

// load is the loader of both instances.
func (t *tour) load(ctx context.Context, ids []int64) (map[int64]Product, error) {
	found, err := loadProducts(ctx, t.db, ids)
	t.queries.Add(1)
	t.gate.Lock()
	defer t.gate.Unlock()
	return found, err
}

// cable is a connection to Redis. While it is pulled, what is sent gets lost.
type cable struct {
	net.Conn
	pulled *atomic.Bool
}

func (c cable) Write(b []byte) (int, error) {
	if c.pulled.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (t *tour) get(ctx context.Context, s *service, id int64) cache.Result[Product] {
	r, err := s.products.GetResult(ctx, id)
	t.ok(err)
	return r
}

func (t *tour) ok(err error) {
	if err != nil {
		t.errs = append(t.errs, err)
	}
}

func (t *tour) expect(what string, saw, want any) {
	if fmt.Sprint(saw) != fmt.Sprint(want) {
		t.errs = append(t.errs, fmt.Errorf("%s: expected %v, saw %v", what, want, saw))
	}
}

// until looks until it sees what is wanted, for two seconds at most.
func (t *tour) until(what string, look func() any, want any) {
	saw, end := look(), time.Now().Add(2*time.Second)
	for fmt.Sprint(saw) != fmt.Sprint(want) && len(t.errs) == 0 && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
		saw = look()
	}
	t.expect(what, saw, want)
}
