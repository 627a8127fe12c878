// Package redistest gives tests a real redis-server, exact counts of what was sent to it, and a proxy that breaks the way to it.
//
// A test package hands its TestMain over and shares one server:
//
//	func TestMain(m *testing.M) { redistest.Run(m) }
//
//	func TestGet(t *testing.T) {
//		server := redistest.Shared(t)
//		rdb, key := server.Client(t), server.Prefix(t)+"k"
//		...
//	}
//
// A test that stops, kills or restarts the server takes one of its own from [Start]. A test that needs a sick network puts a
// [Proxy] before the server and points its client there:
//
//	proxy := redistest.NewProxy(t, server.Addr())
//	rdb := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
//	proxy.Freeze(redistest.ToClient)
//
// Beyond one server there are [Server.Replica], [StartSentinel] (a master, its replica and who makes them change places), and
// [StartCluster] or [SharedCluster] (three masters).
//
// # Limits of time
//
// Nothing here sleeps to wait for an event, and no wait is without an end: what does not happen within fifteen seconds fails the test.
//
// # Concurrency
//
// The methods may be called from several goroutines at once, but those that take a testing.TB end the test when they fail and so
// belong in the test's own goroutine. No goroutine stands while a server runs. Those of a proxy end with its test.
package redistest
