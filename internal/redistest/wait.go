package redistest

import (
	"fmt"
	"time"
)

// await polls for what sends no signal of its own. What is missing is told by ok, as an error.
func await(what string, ok func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not seen within %v: %s: %w", patience, what, err)
		}
	}
}
