package redistest

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// shared is what the tests of one package have in common.
var shared struct {
	sync.Mutex
	server     *Server
	err        error
	cluster    *Cluster
	clusterErr error
}

// Run is the whole TestMain of a package: it runs the tests, stops what they shared, fails the run when
// goroutines are left behind, and exits. Goroutines that are about to end have three seconds: a pool of go-redis that could not
// dial has one for up to a second after its Close.
func Run(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	stopShared()
	if code == 0 {
		if err := findLeaks(options); err != nil {
			fmt.Fprintf(os.Stderr, "redistest: goroutines left behind: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

func findLeaks(options []goleak.Option) error {
	for deadline := time.Now().Add(3 * time.Second); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Shared returns the server that all tests of the package use, started by the first call. Its tests keep apart by [Server.Prefix].
// It refuses to be stopped, killed or restarted; what else touches everybody (Pause, Config, KillClients, Commands) is not for
// tests that run in parallel. It needs [Run] in TestMain.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		if shared.server, shared.err = newServer(nil); shared.err == nil {
			shared.server.shared = true
		}
	}
	if shared.err != nil {
		t.Fatalf("redistest: %v", shared.err)
	}
	shared.server.logFor(t)
	return shared.server
}

// logFor shows the output from now on if the test fails.
func (s *Server) logFor(t testing.TB) {
	if _, again := s.logged.LoadOrStore(t, true); !again {
		from := s.logSize()
		t.Cleanup(func() {
			s.logged.Delete(t)
			s.showLog(t, from)
		})
	}
}

// SharedCluster is to [StartCluster] what Shared is to [Start]. Its nodes are dead to one another only after fifteen seconds of
// silence.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.clusterErr == nil {
		if shared.cluster, shared.clusterErr = newCluster(nil); shared.clusterErr == nil {
			for _, node := range shared.cluster.nodes {
				node.shared = true
			}
		}
	}
	if shared.clusterErr != nil {
		t.Fatalf("redistest: cluster: %v", shared.clusterErr)
	}
	for _, node := range shared.cluster.nodes {
		node.logFor(t)
	}
	return shared.cluster
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.close()
		shared.server = nil
	}
	if shared.cluster != nil {
		shared.cluster.close()
		shared.cluster = nil
	}
}
