package main

import (
	"context"
	"net/http"
	"time"

	"github.com/go-nearside/nearside/cache"
)

// health answers /healthz: 200 while this instance can answer requests for any product, else 503. It can without Redis, and not
// without the database.
type health struct {
	client *cache.Client
	db     *store
}

type healthReport struct {
	Ready    bool   `json:"ready"`
	Database string `json:"database"`
	// Redis counts what went wrong since the start, by kind.
	Redis map[string]uint64 `json:"redis_errors"`
	// Sick is how many nodes of Redis are not asked now, and Waiting how many loads wait for the database.
	Sick    int       `json:"redis_sick"`
	Waiting int       `json:"loads_waiting"`
	Bus     busReport `json:"bus"`
}

// busReport says whether this instance hears what others write. While it does not, its local tier keeps things for a short time.
type busReport struct {
	Hears bool              `json:"hears"`
	Since time.Time         `json:"since"`
	LagMS float64           `json:"lag_ms"`
	Gaps  map[string]uint64 `json:"gaps"`
}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	stats := h.client.Stats()
	report := healthReport{Ready: true, Database: "ok", Redis: stats.RedisErrors, Sick: stats.SickNodes, Waiting: stats.LoadsWaiting}
	if err := h.db.ping(ctx); err != nil {
		report.Ready, report.Database = false, "does not answer"
	}
	bus := h.client.Bus().Health()
	report.Bus = busReport{bus.Live, bus.Since, float64(bus.Lag.Microseconds()) / 1000, bus.Gaps}
	status := http.StatusOK
	if !report.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, report)
}
