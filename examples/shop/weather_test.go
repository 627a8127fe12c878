package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestAWriteIsSeenOnTheOtherInstance(t *testing.T) {
	servers := realServers(t)
	a, b := servers.start(t), servers.start(t)
	for id := int64(1); id <= 10; id++ {
		b.get(t, id) // b holds it in its local tier, for a minute
		b.get(t, id)
		written := a.put(t, id, 5000+id)
		if p, _ := a.get(t, id); p != written {
			t.Errorf("on the instance that wrote: %+v, want %+v", p, written)
		}
		began := time.Now()
		eventually(t, "the other instance has it", func() bool { p, _ := b.get(t, id); return p == written })
		t.Logf("seen on the other instance after %v", time.Since(began))
	}
}

func TestRedisStopped(t *testing.T) {
	servers := realServers(t)
	a := servers.start(t)
	for id := int64(1); id <= 5; id++ {
		a.get(t, id)
	}
	servers.redis.Kill(t)
	for id := int64(1); id <= 10; id++ {
		if p, status := a.get(t, id); status != 200 || p.Cents != 100*id {
			t.Errorf("without Redis: %d %+v", status, p)
		}
	}
	written := a.put(t, 2, 222)
	if p, status := a.get(t, 2); status != 200 || p != written {
		t.Errorf("a write without Redis: %d %+v", status, p)
	}
	if h := a.must(t, "GET", "/healthz", ""); h.status != 200 || !strings.Contains(h.body, `"ready":true`) {
		t.Errorf("it can answer and says: %d %s", h.status, h.body)
	}
	a.awaitBus(t, false)
	servers.redis.StartAgain(t)
	a.awaitBus(t, true)
	if p, status := a.get(t, 2); status != 200 || p != written {
		t.Errorf("with Redis back: %d %+v", status, p)
	}
}

func TestDatabaseStopped(t *testing.T) {
	servers := realServers(t)
	a := servers.start(t)
	a.awaitBus(t, true)
	for id := int64(1); id <= 5; id++ {
		a.get(t, id)
	}
	servers.postgres.Stop(t)
	for id := int64(1); id <= 5; id++ {
		if p, status := a.get(t, id); status != 200 || p.Cents != 100*id {
			t.Errorf("what is cached, without the database: %d %+v", status, p)
		}
	}
	if r := a.must(t, "GET", "/products/9", ""); r.status != 503 || r.header.Get("Retry-After") == "" || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("what is not cached: %d %v %s", r.status, r.header, r.body)
	}
	r := a.must(t, "GET", "/products?ids=1,9", "")
	if want := `{"products":[{"id":1,"name":"product 1","cents":100,"version":1}],"missing":[],"unavailable":[9]}`; r.status != 200 || r.body != want {
		t.Errorf("a batch of both: %d %s", r.status, r.body)
	}
	if r := a.must(t, "GET", "/products?ids=8,9", ""); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("a batch of what is not cached: %d %s", r.status, r.body)
	}
	if r := a.must(t, "PUT", "/products/1", `{"name":"a","cents":1}`); r.status != 503 || strings.Contains(r.body, "127.0.0.1") {
		t.Errorf("a write: %d %s", r.status, r.body)
	}
	if h := a.must(t, "GET", "/healthz", ""); h.status != 503 || !strings.Contains(h.body, `"ready":false`) {
		t.Errorf("it cannot answer all and says: %d %s", h.status, h.body)
	}
	servers.postgres.StartAgain(t)
	eventually(t, "all is well again", func() bool {
		p, status := a.get(t, 9)
		return status == 200 && p.Cents == 900 && a.must(t, "GET", "/healthz", "").status == 200
	})
}

// TestDatabaseOverloaded: while the database answers nobody, as many loads wait as may; the requests beyond are told to come later.
func TestDatabaseOverloaded(t *testing.T) {
	servers := realServers(t)
	a := servers.start(t)
	a.awaitBus(t, true)
	lock, err := servers.db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Rollback()
	if _, err := lock.Exec("LOCK TABLE product"); err != nil {
		t.Fatal(err)
	}
	const places, requests = maxConnections * 5, maxConnections*5 + 20 // four wait for each connection
	statuses := make(chan int, requests)
	var all sync.WaitGroup
	for id := range requests {
		all.Go(func() { statuses <- a.must(t, "GET", fmt.Sprint("/products/", id+1), "").status })
	}
	for range requests - places {
		if status := <-statuses; status != 503 {
			t.Errorf("a request beyond what may wait: %d", status)
		}
	}
	eventually(t, "the others wait", func() bool {
		return strings.Contains(a.must(t, "GET", "/healthz", "").body, fmt.Sprintf(`"loads_waiting":%d`, 4*maxConnections))
	})
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	for range places {
		if status := <-statuses; status != 200 && status != 404 {
			t.Errorf("a request that waited: %d", status)
		}
	}
}

// TestLoad: no instance answers with less than what it acknowledged, under a load of reads, batches and writes on two instances.
func TestLoad(t *testing.T) {
	servers := realServers(t)
	const products, workers, requests = 10, 4, 400
	var all sync.WaitGroup
	for range 2 {
		s := servers.start(t)
		acknowledged := make([]struct {
			sync.Mutex
			version int64
		}, products+1)
		floor := func(id int64) int64 {
			acknowledged[id].Lock()
			defer acknowledged[id].Unlock()
			return acknowledged[id].version
		}
		check := func(p Product, least int64) {
			if p.Version < least || p.Name != fmt.Sprintf("product %d", p.ID) {
				t.Errorf("%+v after version %d was acknowledged", p, least)
			}
		}
		for range workers {
			all.Go(func() {
				for range requests {
					id := 1 + rand.Int64N(products)
					switch n := rand.IntN(10); {
					case n < 7:
						least := floor(id)
						p, status := s.get(t, id)
						if check(p, least); status != 200 || p.ID != id {
							t.Errorf("GET %d: %d %+v", id, status, p)
						}
					case n < 8:
						other := 1 + id%products
						leastOne, leastOther := floor(id), floor(other)
						found, err := s.batch(t.Context(), id, other)
						if err != nil || len(found) != 2 {
							t.Errorf("a batch: %v, %v", found, err)
							return
						}
						check(found[0], leastOne)
						check(found[1], leastOther)
					default:
						p := s.put(t, id, rand.Int64N(10_000))
						acknowledged[id].Lock()
						acknowledged[id].version = max(acknowledged[id].version, p.Version)
						acknowledged[id].Unlock()
					}
				}
			})
		}
	}
	all.Wait()
}

// stopBeside stops an instance while a request of it waits in the database, and wants both to end well.
func (s *servers) stopBeside(t *testing.T, a *shop, method, path, body string) {
	t.Helper()
	release := s.lock(t)
	answers := make(chan answer, 1)
	go func() {
		r, err := a.do(context.Background(), method, path, body)
		if err != nil {
			t.Error(err)
		}
		answers <- r
	}()
	s.awaitBlocked(t, 1)
	ended := make(chan error, 1)
	go func() { ended <- a.stop() }()
	eventually(t, "no new connection is taken", func() bool {
		_, err := a.do(t.Context(), "GET", "/healthz", "")
		return err != nil
	})
	release()
	if r := <-answers; r.status != 200 {
		t.Errorf("the request that was under way: %d %s", r.status, r.body)
	}
	if err := <-ended; err != nil {
		t.Errorf("the end: %v", err)
	}
}

func TestStopWaitsForRequests(t *testing.T) {
	servers := realServers(t)
	servers.stopBeside(t, servers.start(t), "GET", "/products/1", "")
}

// TestAClientThatHasFinishedSending still reads: net/http ends its context, and it must not get an empty success for that.
func TestAClientThatHasFinishedSending(t *testing.T) {
	servers := realServers(t)
	s := servers.start(t)
	release := servers.lock(t)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /products/1 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n")
	servers.awaitBlocked(t, 1)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	servers.awaitBlocked(t, 0) // the load had one caller, who seems to have left
	release()
	raw, err := io.ReadAll(conn)
	if status, _, _ := strings.Cut(string(raw), "\r\n"); err != nil || status != "HTTP/1.1 503 Service Unavailable" {
		t.Errorf("%s, %v", status, err)
	}
}

// TestAStopComesBetweenNoCommitAndItsInvalidation: a write that is under way when the service is told to stop ends whole.
func TestAStopComesBetweenNoCommitAndItsInvalidation(t *testing.T) {
	servers := realServers(t)
	a, b := servers.start(t), servers.start(t)
	b.awaitBus(t, true)
	b.get(t, 1)
	servers.stopBeside(t, a, "PUT", "/products/1", `{"name":"product 1","cents":777}`)
	eventually(t, "the other instance has it", func() bool { p, _ := b.get(t, 1); return p.Cents == 777 })
}

// TestAFullPoolIsNoSickDatabase: queries that wait for a lock take every connection, and what is cached is answered.
func TestAFullPoolIsNoSickDatabase(t *testing.T) {
	servers := realServers(t)
	a := servers.start(t)
	a.awaitBus(t, true)
	a.get(t, 1)
	release := servers.lock(t)
	var waiting sync.WaitGroup
	for id := int64(2); id <= 18; id++ { // one more than there are connections
		waiting.Go(func() { a.get(t, id) })
	}
	servers.awaitBlocked(t, 16)
	if h := a.must(t, "GET", "/healthz", ""); h.status != 200 {
		t.Errorf("with a full pool: %d %s", h.status, h.body)
	}
	if p, status := a.get(t, 1); status != 200 || p.Cents != 100 {
		t.Errorf("what is cached: %d %+v", status, p)
	}
	release()
	waiting.Wait()
}

func TestATagIsOfTheContent(t *testing.T) {
	p := Product{ID: 1, Name: "a", Cents: 1, Version: 2} // a database that was restored counts anew
	for _, other := range []Product{{2, "a", 1, 2}, {1, "b", 1, 2}, {1, "a", 2, 2}, {1, "a", 1, 3}} {
		if tagOf(p) == tagOf(other) {
			t.Errorf("%+v and %+v have one tag", p, other)
		}
	}
}
