package pgtest

import (
	"database/sql"
	"testing"
)

func TestServer(t *testing.T) {
	s := Start(t)
	db, err := sql.Open("pgx", s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE t (n INT); INSERT INTO t VALUES (7)"); err != nil {
		t.Fatal(err)
	}
	s.Stop(t)
	if err := db.PingContext(t.Context()); err == nil {
		t.Error("a server that was stopped answers")
	}
	s.StartAgain(t)
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT n FROM t").Scan(&n); err != nil || n != 7 {
		t.Errorf("%d, %v; what was committed is gone", n, err)
	}
}
