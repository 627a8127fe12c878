package cache_test

import (
	"os"
	"testing"

	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	redistest.Run(m)
}
