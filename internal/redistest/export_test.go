package redistest

import "time"

// ShortenPatience bounds waits by d, until restore is called.
func ShortenPatience(d time.Duration) (restore func()) {
	long := patience
	patience = d
	return func() { patience = long }
}

// OfferPorts makes the next servers try these ports first, until restore is called.
func OfferPorts(ports ...int) (restore func()) {
	drawn := freePort
	freePort = func() int {
		if len(ports) == 0 {
			return drawn()
		}
		port := ports[0]
		ports = ports[1:]
		return port
	}
	return func() { freePort = drawn }
}
