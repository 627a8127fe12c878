package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// batch returns some products.
func (s *shop) batch(ctx context.Context, ids ...int64) ([]Product, error) {
	r, err := s.do(ctx, "GET", "/products?ids="+strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]"), "")
	if err != nil {
		return nil, err
	}
	var b struct{ Products []Product }
	err = json.Unmarshal([]byte(r.body), &b)
	return b.Products, err
}

// lock makes every query of the products wait until release is called.
func (s *servers) lock(t *testing.T) (release func()) {
	t.Helper()
	tx, err := s.db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	if _, err := tx.Exec("LOCK TABLE product IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}

// awaitBlocked waits until so many queries wait for the lock.
func (s *servers) awaitBlocked(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d queries wait", want), func() bool {
		var n int
		err := s.db.QueryRow("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").Scan(&n)
		return err == nil && n == want
	})
}

// TestC125_NobodyGetsWhatIsAnothers: answers hold nothing of a request but the id that was asked for, say for whom they are, and
// no error is ever to be kept.
func TestC125_NobodyGetsWhatIsAnothers(t *testing.T) {
	s := start(t, "", "")
	var bodies []string
	for _, test := range []struct {
		header []string
		want   string
	}{
		{nil, "public, no-cache"},
		{[]string{"Authorization", "Bearer A"}, "private, no-cache"},
		{[]string{"Authorization", "Bearer B"}, "private, no-cache"},
		{[]string{"Cookie", "session=A"}, "private, no-cache"},
		{[]string{"Host", "elsewhere.example"}, "public, no-cache"},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			r := s.must(t, method, "/products/1?for="+url.QueryEscape(strings.Join(test.header, " ")), "", test.header...)
			if r.status != 200 || r.header.Get("Cache-Control") != test.want || !strings.Contains(r.header.Get("Vary"), "Authorization") ||
				!strings.Contains(r.header.Get("Vary"), "Cookie") || r.header.Get("Set-Cookie") != "" {
				t.Errorf("%s with %v: %d %v", method, test.header, r.status, r.header)
			}
			if method == "GET" {
				bodies = append(bodies, r.body)
			}
		}
	}
	for _, body := range bodies {
		if body != bodies[0] || strings.Contains(body, "Bearer") {
			t.Errorf("%q for one, %q for another", body, bodies[0])
		}
	}
	for path, status := range map[string]int{"/products/999": 404, "/products/x": 400, "/nothing": 404} {
		r := s.must(t, "GET", path, "", "Authorization", "Bearer A")
		if r.status != status || r.header.Get("Cache-Control") != "no-store" || r.header.Get("ETag") != "" {
			t.Errorf("%s: %d %v", path, r.status, r.header)
		}
	}
	if r := s.must(t, "PUT", "/products/1", `{"name":"a","cents":1}`, "Authorization", "Bearer A"); r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the answer to a write may be kept: %v", r.header)
	}
}

// TestC127_WhoLeavesTakesNobodysLoadAlong: the load that a client began goes on for another who waits for it; when the last has
// left it ends, and nobody later hears of that.
func TestC127_WhoLeavesTakesNobodysLoadAlong(t *testing.T) {
	servers := realServers(t)
	s := servers.start(t)
	s.awaitBus(t, true)
	ask := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() {
			r, err := s.do(ctx, "GET", "/products/1", "")
			if err == nil && r.status != 200 {
				err = fmt.Errorf("%d %s", r.status, r.body)
			}
			ended <- err
		}()
		return ended
	}

	release := servers.lock(t)
	ctx, leave := context.WithCancel(t.Context())
	first := ask(ctx)
	servers.awaitBlocked(t, 1)
	second := ask(t.Context())
	eventually(t, "the second client shares the load", func() bool { return s.joined() == 1 })
	leave()
	if err := <-first; err == nil {
		t.Error("the first client got an answer after it had left")
	}
	servers.awaitBlocked(t, 1)
	release()
	if err := <-second; err != nil {
		t.Errorf("the second client: %v", err)
	}

	s.put(t, 1, 1)
	release = servers.lock(t)
	ctx, leave = context.WithCancel(t.Context())
	only := ask(ctx)
	servers.awaitBlocked(t, 1)
	leave()
	<-only
	servers.awaitBlocked(t, 0) // the load was cancelled
	release()
	if err := <-ask(t.Context()); err != nil {
		t.Errorf("a client that came later: %v", err)
	}
}
