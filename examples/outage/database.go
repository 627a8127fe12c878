package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	rows     = 1000
	loadTime = 20 * time.Millisecond
	bears    = 20 // loads at once
)

// errTooMany is what a database says that has no connection left.
var errTooMany = errors.New("too many connections")

// row is what is cached: all that matters is how old it is.
type row struct {
	ID, Version int64
}

// database stands for the one behind the cache.
type database struct {
	mu       sync.Mutex
	versions [rows]int64 // guarded by mu
	inFlight int         // guarded by mu
	seen     loads       // guarded by mu
}

// loads is what a database has seen since it was last asked.
type loads struct {
	total   int
	most    int // that wanted to run at once, the refused one included
	refused int
}

// load reads a row as a query does: what it returns was true when it began.
func (d *database) load(ctx context.Context, id int64) (row, error) {
	if err := ctx.Err(); err != nil {
		return row{}, err
	}
	d.mu.Lock()
	d.inFlight++
	d.seen.total++
	d.seen.most = max(d.seen.most, d.inFlight)
	refused := d.inFlight > bears
	if refused {
		d.seen.refused++
	}
	found := row{id, d.versions[id]}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.inFlight--
	}()
	if refused {
		return row{}, errTooMany
	}
	select {
	case <-time.After(loadTime):
		return found, nil
	case <-ctx.Done():
		return row{}, ctx.Err()
	}
}

// commit writes a new version of a row.
func (d *database) commit(id int64) (version int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.versions[id]++
	return d.versions[id]
}

// cut returns what was seen, and begins anew with the loads under way.
func (d *database) cut() loads {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := d.seen
	d.seen = loads{most: d.inFlight}
	return seen
}
