package cache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// TestAnErrorUnderAForeignKeyIsNoAbsence: it may be the error of a key that was asked for, in another spelling.
func TestAnErrorUnderAForeignKeyIsNoAbsence(t *testing.T) {
	w := newWorld(t)
	calls := 0
	rows := mustNew(t, w.instance(t).client, "foreign", func(context.Context, []int) (map[int]string, error) {
		calls++
		return map[int]string{}, &cache.KeyErrors[int]{ByKey: map[int]error{-5: errors.New("the row is locked")}}
	}, cache.Policy{TTL: time.Minute})
	for n := range 3 {
		if _, err := rows.Get(t.Context(), 1); !errors.Is(err, cache.ErrNotFound) {
			t.Errorf("Get = %v", err)
		}
		if calls != n+1 {
			t.Errorf("%d calls of the loader after %d Gets: the absence was kept", calls, n+1)
		}
	}
	if n := rows.Stats().ForeignRows; n != 3 {
		t.Errorf("ForeignRows = %d, want 3", n)
	}
}
