package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

const million = 1_000_000

// heap returns what is in use after a collection.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools let go of what they hold at the second
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// perEntry measures the heap that a cache takes, its own tables included. fill returns the cache, so that it lives, and a count
// of what it holds.
func perEntry(count int, fill func() (c any, held int, err error)) (m measured, err error) {
	before := heap()
	c, held, err := fill()
	if err != nil {
		return m, err
	}
	after := heap()
	runtime.KeepAlive(c)
	if held < count*99/100 {
		return m, fmt.Errorf("it holds only %d of %d", held, count)
	}
	return measured{Cost: (after - before) / float64(held)}, nil
}

func nearMemory(j job) (measured, error) {
	count := j.keys(million)
	return perEntry(count, func() (any, int, error) {
		n, err := openNear(j, single, smallOf, 0, longLived(count))
		if err == nil {
			err = n.fill(count)
		}
		if err != nil {
			return nil, 0, err
		}
		held, err := n.local(count)
		return n, held, err
	})
}

func ristrettoMemory(j job) (measured, error) {
	count := j.keys(million)
	return perEntry(count, func() (any, int, error) {
		c, err := newRistretto[small](count)
		if err != nil {
			return nil, 0, err
		}
		err = fillRistretto(c, count, smallOf)
		return c, held(count, c.Get), err
	})
}

func otterMemory(j job) (measured, error) {
	count := j.keys(million)
	return perEntry(count, func() (any, int, error) {
		c, err := newOtter(count, smallOf)
		return c, held(count, c.GetIfPresent), err
	})
}

// held counts the keys that a cache knows.
func held(count int, get func(string) (small, bool)) (n int) {
	for i := range count {
		if v, ok := get(key(i)); ok && v == smallOf(i) {
			n++
		}
	}
	return n
}

// warmer is a way to put keys into an empty local tier.
type warmer struct {
	put    func(n *near[small], i int) error
	stored bool // Redis has the keys already, as it has for a process that starts again; else it is empty
}

func bySet(n *near[small], i int) error { return n.rows.Set(context.Background(), key(i), smallOf(i)) }

func byGet(n *near[small], i int) error {
	v, err := n.rows.Get(context.Background(), key(i))
	if err == nil && v != smallOf(i) {
		err = fmt.Errorf("%s: got %v", key(i), v)
	}
	return err
}

// measure warms a local tier, each key once, and counts what it then answers.
func (w warmer) measure(j job) (measured, error) {
	count := j.keys(tableSize)
	if err := w.prepare(j, count); err != nil {
		return measured{}, err
	}
	n, err := openNear(j, single, smallOf, 0, longLived(count))
	if err != nil {
		return measured{}, err
	}
	defer n.close()
	n.sealed.Store(w.stored)
	err = each(count, func(i int) error { return w.put(n, i) })
	if err == nil {
		err = n.settle()
	}
	if err == nil {
		before := n.rows.Stats()
		err = await(func() error { // the local tier is filled behind the answers
			time.Sleep(100 * time.Millisecond)
			now := n.rows.Stats()
			if now != before {
				before = now
				return errors.New("the local tier is still being filled")
			}
			return nil
		})
	}
	if err != nil {
		return measured{}, err
	}
	held, err := n.local(count)
	return measured{Cost: float64(held) / float64(count)}, err
}

// prepare brings Redis into the state in which each turn begins.
func (w warmer) prepare(j job, count int) error {
	n, err := openNear(j, single, smallOf, 0, noLocal)
	if err != nil {
		return err
	}
	defer n.close()
	if w.stored {
		return n.fill(count)
	}
	return n.rdb.FlushAll(context.Background()).Err()
}

func ristrettoWarm(j job) (measured, error) {
	count := j.keys(tableSize)
	c, err := newRistretto[small](count)
	if err != nil {
		return measured{}, err
	}
	err = each(count, func(i int) error {
		c.SetWithTTL(key(i), smallOf(i), 1, time.Hour)
		return nil
	})
	c.Wait()
	return measured{Cost: float64(held(count, c.Get)) / float64(count)}, err
}

// each calls do for all numbers below count, by 64 callers.
func each(count int, do func(i int) error) error {
	var next atomic.Int64
	return parallel(64, func() error {
		for {
			i := int(next.Add(1)) - 1
			if i >= count {
				return nil
			}
			if err := do(i); err != nil {
				return err
			}
		}
	})
}
