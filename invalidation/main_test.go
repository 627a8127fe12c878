package invalidation_test

import (
	"testing"

	"github.com/go-nearside/nearside/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Run(m) }
