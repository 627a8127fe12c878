package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"
)

// Product is a row. Its version rises with each write.
type Product struct {
	ID      int64  `json:"id"`
	Name    string `json:"name"`
	Cents   int64  `json:"cents"`
	Version int64  `json:"version"`
}

// store is the table of products, in PostgreSQL or SQLite. It knows nothing of caches.
type store struct {
	db   *sql.DB
	side *sql.DB // a connection of its own for ping: a full pool is no database that is away
}

// maxConnections is this instance's share of what the database bears.
const maxConnections = 16

const schema = `CREATE TABLE IF NOT EXISTS product (
	id BIGINT PRIMARY KEY, name TEXT NOT NULL, cents BIGINT NOT NULL, version BIGINT NOT NULL)`

// openStore opens the database at a URL of PostgreSQL, or an embedded one with some products if there is none.
func openStore(ctx context.Context, url string) (*store, error) {
	driver := "pgx"
	if url == "" {
		driver, url = "sqlite", ":memory:"
	}
	db, err := sql.Open(driver, url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	db.SetMaxOpenConns(maxConnections)
	if driver == "sqlite" {
		db.SetMaxOpenConns(1) // each connection to :memory: is a database of its own
	}
	s := &store{db: db, side: db}
	if driver == "pgx" {
		if s.side, err = sql.Open(driver, url); err != nil {
			db.Close()
			return nil, fmt.Errorf("DATABASE_URL: %w", err)
		}
		s.side.SetMaxOpenConns(1)
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		s.close()
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	for id := int64(1); driver == "sqlite" && id <= 20; id++ {
		if _, err := s.putProduct(ctx, Product{ID: id, Name: fmt.Sprintf("product %d", id), Cents: 100 * id}); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *store) close() error { return errors.Join(s.side.Close(), s.db.Close()) }

// ping asks whether the database answers.
func (s *store) ping(ctx context.Context) error { return s.side.PingContext(ctx) }

// findProducts reads some products by one query. Those that do not exist are not in the map.
func (s *store) findProducts(ctx context.Context, ids []int64) (map[int64]Product, error) {
	args := make([]any, len(ids))
	marks := make([]string, len(ids))
	for i, id := range ids {
		args[i], marks[i] = id, fmt.Sprintf("$%d", i+1)
	}
	rows, err := s.db.QueryContext(ctx, "SELECT id, name, cents, version FROM product WHERE id IN ("+strings.Join(marks, ", ")+")", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := make(map[int64]Product, len(ids))
	for rows.Next() {
		var p Product
		if err := rows.Scan(&p.ID, &p.Name, &p.Cents, &p.Version); err != nil {
			return nil, err
		}
		found[p.ID] = p
	}
	return found, rows.Err()
}

// putProduct writes a product, with the next version, and commits.
func (s *store) putProduct(ctx context.Context, p Product) (Product, error) {
	row := s.db.QueryRowContext(ctx, `
		INSERT INTO product (id, name, cents, version) VALUES ($1, $2, $3, 1)
		ON CONFLICT (id) DO UPDATE SET name = excluded.name, cents = excluded.cents, version = product.version + 1
		RETURNING version`, p.ID, p.Name, p.Cents)
	err := row.Scan(&p.Version)
	return p, err
}
