package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-nearside/nearside/examples/internal/pgtest"
	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) {
	redistest.Run(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
}

// shop is one instance, as one process has it.
type shop struct {
	url    string
	joined func() uint64 // the callers that shared the load of another
	stop   func() error  // tells it to stop and waits for its end; may be called again
	client *http.Client
}

func start(t *testing.T, redisURL, databaseURL string) *shop {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	addr, ended := make(chan net.Addr, 1), make(chan error, 1)
	config := config{addr: "127.0.0.1:0", redisURL: redisURL, databaseURL: databaseURL, log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	s := &shop{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 20 * time.Second}}
	go func() {
		ended <- run(ctx, config, func(a net.Addr, c *catalog) {
			s.joined = func() uint64 { return c.cache.Stats().Joined }
			addr <- a
		})
	}()
	var result error
	done := false
	s.stop = func() error {
		if !done {
			cancel()
			result, done = <-ended, true
			s.client.CloseIdleConnections()
		}
		return result
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Errorf("the shop ended with %v", err)
		}
	})
	select {
	case a := <-addr:
		s.url = "http://" + a.String()
	case err := <-ended:
		done = true
		t.Fatalf("the shop did not start: %v", err)
	}
	return s
}

// answer is an HTTP response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

func (s *shop) do(ctx context.Context, method, path, body string, header ...string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if method == http.MethodPut {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := s.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(bytes.TrimSpace(raw))}, err
}

func (s *shop) must(t *testing.T, method, path, body string, header ...string) answer {
	t.Helper()
	a, err := s.do(t.Context(), method, path, body, header...)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err) // also in goroutines of a test
	}
	return a
}

// get returns a product.
func (s *shop) get(t *testing.T, id int64) (p Product, status int) {
	t.Helper()
	a := s.must(t, "GET", fmt.Sprintf("/products/%d", id), "")
	if a.status == http.StatusOK {
		if err := json.Unmarshal([]byte(a.body), &p); err != nil {
			t.Errorf("%q: %v", a.body, err)
		}
	}
	return p, a.status
}

// awaitBus waits until the instance hears what others write: the first time that is, it forgets all that it had heard before.
func (s *shop) awaitBus(t *testing.T, hears bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("the bus hears: %v", hears), func() bool {
		var report healthReport
		err := json.Unmarshal([]byte(s.must(t, "GET", "/healthz", "").body), &report)
		return err == nil && report.Bus.Hears == hears
	})
}

// put writes a product and returns it.
func (s *shop) put(t *testing.T, id, cents int64) (p Product) {
	t.Helper()
	a := s.must(t, "PUT", fmt.Sprintf("/products/%d", id), fmt.Sprintf(`{"name":"product %d","cents":%d}`, id, cents))
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != http.StatusOK {
		t.Errorf("PUT: %d %s, %v", a.status, a.body, err)
	}
	return p
}

// servers are a redis-server and a PostgreSQL with some products.
type servers struct {
	redis    *redistest.Server
	postgres *pgtest.Server
	db       *sql.DB
}

func realServers(t *testing.T) *servers {
	t.Helper()
	s := &servers{redis: redistest.Start(t), postgres: pgtest.Start(t)}
	var err error
	if s.db, err = sql.Open("pgx", s.postgres.URL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	if _, err := s.db.Exec(schema + `; INSERT INTO product SELECT n, 'product ' || n, 100 * n, 1 FROM generate_series(1, 20) AS n`); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *servers) start(t *testing.T) *shop {
	return start(t, "redis://"+s.redis.Addr(), s.postgres.URL)
}

// eventually waits for what can be seen and not be heard of.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("this did not happen: %s", what)
		}
	}
}

func TestRoutes(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { routes(t, start(t, "", "")) })
	t.Run("servers", func(t *testing.T) { routes(t, realServers(t).start(t)) })
}

func routes(t *testing.T, s *shop) {
	first := s.must(t, "GET", "/products/3", "")
	if first.status != 200 || first.body != `{"id":3,"name":"product 3","cents":300,"version":1}` {
		t.Errorf("GET: %d %s", first.status, first.body)
	}
	tag := first.header.Get("ETag")
	if again := s.must(t, "GET", "/products/3", "", "If-None-Match", `"x", W/`+tag); again.status != 304 || again.body != "" || again.header.Get("ETag") != tag {
		t.Errorf("with its tag: %d %q %v", again.status, again.body, again.header)
	}
	if head := s.must(t, "HEAD", "/products/3", ""); head.status != 200 || head.body != "" || head.header.Get("ETag") != tag {
		t.Errorf("HEAD: %d %q %v", head.status, head.body, head.header)
	}
	if p := s.put(t, 3, 333); p.Cents != 333 || p.Version != 2 {
		t.Errorf("PUT: %+v", p)
	}
	if changed := s.must(t, "GET", "/products/3", "", "If-None-Match", tag); changed.status != 200 || changed.body != `{"id":3,"name":"product 3","cents":333,"version":2}` {
		t.Errorf("after a PUT, with the old tag: %d %s", changed.status, changed.body)
	}
	if _, status := s.get(t, 404); status != 404 {
		t.Errorf("a product that does not exist: %d", status)
	}
	s.put(t, 404, 1)
	if p, status := s.get(t, 404); status != 200 || p.Version != 1 {
		t.Errorf("once it exists: %d %+v", status, p)
	}
	many := s.must(t, "GET", "/products?ids=20,1,999,20", "")
	want := `{"products":[{"id":20,"name":"product 20","cents":2000,"version":1},{"id":1,"name":"product 1","cents":100,"version":1}],"missing":[999],"unavailable":[]}`
	if many.status != 200 || many.body != want {
		t.Errorf("a batch: %d %s", many.status, many.body)
	}
	eventually(t, "healthz says that all is well", func() bool {
		var report healthReport
		a := s.must(t, "GET", "/healthz", "")
		err := json.Unmarshal([]byte(a.body), &report)
		return err == nil && a.status == 200 && report.Ready && report.Database == "ok" && report.Bus.Hears
	})
}

func TestBadInput(t *testing.T) {
	s := start(t, "", "")
	for _, test := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/products/0", "", 400},
		{"GET", "/products/-1", "", 400},
		{"GET", "/products/01", "", 400},
		{"GET", "/products/x", "", 400},
		{"GET", "/products/9223372036854775808", "", 400},
		{"GET", "/products/1/2", "", 404},
		{"GET", "/products", "", 400},
		{"GET", "/products?ids=", "", 400},
		{"GET", "/products?ids=1,,2", "", 400},
		{"GET", "/products?ids=1,x", "", 400},
		{"GET", "/products?ids=" + strings.Repeat("1,", 100) + "1", "", 400},
		{"POST", "/products/1", "", 405},
		{"DELETE", "/products/1", "", 405},
		{"PUT", "/products", "{}", 405},
		{"PUT", "/products/x", `{"name":"a","cents":1}`, 400},
		{"PUT", "/products/1", ``, 400},
		{"PUT", "/products/1", `[]`, 400},
		{"PUT", "/products/1", `{"name":"a"}`, 400},
		{"PUT", "/products/1", `{"name":"","cents":1}`, 400},
		{"PUT", "/products/1", `{"name":"a\u0000","cents":1}`, 400},
		{"PUT", "/products/1", `{"name":"a","cents":-1}`, 400},
		{"PUT", "/products/1", `{"name":"a","cents":1.5}`, 400},
		{"PUT", "/products/1", `{"name":"a","cents":1,"id":2}`, 400},
		{"PUT", "/products/1", `{"name":"a","cents":1} {}`, 400},
		{"PUT", "/products/1", `{"name":"` + strings.Repeat("a", 5000) + `","cents":1}`, 413},
		{"GET", "/", "", 404},
	} {
		a := s.must(t, test.method, test.path, test.body)
		if a.status != test.status {
			t.Errorf("%s %.40s %.60s: %d %s, want %d", test.method, test.path, test.body, a.status, a.body, test.status)
		}
		if a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %.40s: an error may be kept: %v", test.method, test.path, a.header)
		}
	}
	if a := s.must(t, "PUT", "/products/1", `{"name":"a","cents":1}`, "Content-Type", "text/plain"); a.status != 415 {
		t.Errorf("a body of another type: %d", a.status)
	}
	if p, _ := s.get(t, 1); p.Version != 1 {
		t.Errorf("bad input has changed a product: %+v", p)
	}
}
