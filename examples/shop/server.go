package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-nearside/nearside/cache"
)

const (
	maxBody  = 4 << 10
	maxBatch = 100
	maxName  = 200
)

// server is the HTTP side of the catalog.
//
// What it caches are rows, by their id, and never responses: nothing of one request (a header, a cookie, a user) can reach the
// answer to another. A row that is a user's own would have the user in its key.
type server struct {
	products *catalog
	log      *slog.Logger
	mux      *http.ServeMux
}

func newServer(products *catalog, health http.Handler, log *slog.Logger) *server {
	s := &server{products: products, log: log, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /products/{id}", s.getProduct)
	s.mux.HandleFunc("GET /products", s.getProducts)
	s.mux.HandleFunc("PUT /products/{id}", s.putProduct)
	s.mux.Handle("GET /healthz", health)
	return s
}

// ServeHTTP serves a request and logs it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	// What is not said otherwise is not to be kept by anybody: errors, and what is written.
	w.Header().Set("Cache-Control", "no-store")
	status := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	s.mux.ServeHTTP(status, r)
	s.log.Info("request", "method", r.Method, "path", r.URL.Path, "status", status.status, "ms", float64(time.Since(began).Microseconds())/1000)
}

// statusWriter remembers the status for the log.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (s *server) getProduct(w http.ResponseWriter, r *http.Request) {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	p, err := s.products.get(r.Context(), id)
	switch {
	case errors.Is(err, cache.ErrNotFound):
		writeError(w, http.StatusNotFound, fmt.Sprintf("there is no product %d", id))
	case err != nil:
		s.unavailable(w, r, err)
	default:
		tag := tagOf(p)
		mayCache(w, r, tag)
		if hasTag(r.Header.Values("If-None-Match"), tag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		writeJSON(w, http.StatusOK, p)
	}
}

// batch is the answer for many: what exists, what does not, and what could not be found out now.
type batch struct {
	Products    []Product `json:"products"`
	Missing     []int64   `json:"missing"`
	Unavailable []int64   `json:"unavailable"`
}

func (s *server) getProducts(w http.ResponseWriter, r *http.Request) {
	ids, err := parseIDs(r.URL.Query().Get("ids"))
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	found, err := s.products.find(r.Context(), ids)
	var failed *cache.KeyErrors[int64]
	if err != nil && (!errors.As(err, &failed) || len(found) == 0) {
		s.unavailable(w, r, err)
		return
	}
	answer := batch{Products: []Product{}, Missing: []int64{}, Unavailable: []int64{}}
	for _, id := range ids {
		p, ok := found[id]
		switch {
		case ok:
			answer.Products = append(answer.Products, p)
		case failed != nil && failed.ByKey[id] != nil:
			answer.Unavailable = append(answer.Unavailable, id)
		default:
			answer.Missing = append(answer.Missing, id)
		}
	}
	if failed != nil {
		s.log.Warn("some products are not available", "error", err)
	}
	writeJSON(w, http.StatusOK, answer)
}

func (s *server) putProduct(w http.ResponseWriter, r *http.Request) {
	id, err := parseID(r.PathValue("id"))
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	p, status, err := readProduct(w, r)
	if err != nil {
		writeError(w, status, err.Error())
		return
	}
	p.ID = id
	written, late, err := s.products.put(r.Context(), p)
	if late != nil {
		s.log.Warn("the others may answer with the old row until it expires", "id", id, "error", late)
	}
	if err != nil {
		s.unavailable(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, written)
}

// readProduct reads the body of a PUT.
func readProduct(w http.ResponseWriter, r *http.Request) (p Product, status int, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return p, http.StatusUnsupportedMediaType, errors.New("the Content-Type must be application/json")
	}
	var body struct {
		Name  *string `json:"name"`
		Cents *int64  `json:"cents"`
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&body)
	if err == nil && decoder.Decode(&struct{}{}) != io.EOF {
		err = errors.New("something follows the object")
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return p, http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", maxBody)
	case err != nil:
		return p, http.StatusBadRequest, fmt.Errorf("the body is not a product: %w", err)
	case body.Name == nil || *body.Name == "" || len(*body.Name) > maxName || strings.ContainsRune(*body.Name, 0):
		return p, http.StatusBadRequest, fmt.Errorf("name must have 1 to %d bytes, none of them 0", maxName)
	case body.Cents == nil || *body.Cents < 0:
		return p, http.StatusBadRequest, errors.New("cents must be a number that is not negative")
	}
	return Product{Name: *body.Name, Cents: *body.Cents}, 0, nil
}

func parseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 || strconv.FormatInt(id, 10) != text {
		return 0, fmt.Errorf("%.30q is not an id: a number from 1 on", text)
	}
	return id, nil
}

func parseIDs(text string) ([]int64, error) {
	if text == "" {
		return nil, errors.New("ids is missing: ids=1,2,3")
	}
	if n := strings.Count(text, ",") + 1; n > maxBatch {
		return nil, fmt.Errorf("%d ids: at most %d at once", n, maxBatch)
	}
	var ids []int64
	seen := map[int64]bool{}
	for part := range strings.SplitSeq(text, ",") {
		id, err := parseID(part)
		if err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// mayCache lets browsers and proxies keep an answer, and makes them ask each time whether it still holds. What came for a request
// with credentials is for the one who sent it alone.
func mayCache(w http.ResponseWriter, r *http.Request, tag string) {
	scope := "public"
	if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
		scope = "private"
	}
	w.Header().Set("Cache-Control", scope+", no-cache")
	w.Header().Add("Vary", "Authorization, Cookie")
	w.Header().Set("ETag", tag)
}

// tagOf is the same for the same content only. The version alone will not do: a database that was restored counts anew.
func tagOf(p Product) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d %s", p.ID, p.Version, p.Cents, p.Name)
	return fmt.Sprintf(`"%x"`, h.Sum64())
}

// hasTag tells whether an If-None-Match names a tag (RFC 9110, 13.1.2: by weak comparison).
func hasTag(headers []string, tag string) bool {
	for _, header := range headers {
		for part := range strings.SplitSeq(header, ",") {
			if part = strings.TrimSpace(part); part == "*" || strings.TrimPrefix(part, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// unavailable says that there is no answer now: the database is away, slow, or has too much to do (cache.ErrOverloaded), and no tier
// holds what was asked for. It says so also when the request has ended, since a client that has only finished sending still reads.
func (s *server) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	s.log.Error("no answer", "path", r.URL.Path, "error", err)
	w.Header().Set("Retry-After", "1")
	writeError(w, http.StatusServiceUnavailable, "not available now: try again")
}

func writeError(w http.ResponseWriter, status int, text string) {
	writeJSON(w, status, map[string]string{"error": text})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only when nobody listens any more
}
