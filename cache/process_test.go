package cache_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/go-nearside/nearside/cache"
)

// roleVariable makes a copy of this test binary play one of the roles below instead of running tests.
const roleVariable = "NEARSIDE_TEST_ROLE"

// The roles.
const (
	roleMember = "member" // a process with a cache, which does what it reads from its standard input
	roleIdler  = "idler"  // a process that imports the package and does nothing with it
)

// play runs a role and returns the exit code of the process.
func play(role string) int {
	switch role {
	case roleMember:
		return playMember(os.Getenv("NEARSIDE_TEST_REDIS"), os.Getenv("NEARSIDE_TEST_NAMESPACE"), os.Stdin, os.Stdout)
	case roleIdler:
		if err := goleak.Find(); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	}
	return 2
}

// leaseOfMembers is how long the leases of members live without renewal.
const leaseOfMembers = 400 * time.Millisecond

// playMember reads commands, one a line, until the input ends. Its source is a string in Redis, so that all members have the
// same. What happens it writes as a line: "loaded" when a load has read the source, and then "got VALUE".
//
//	get KEY        a Get beside the following commands
//	held get KEY   the same, with a load that waits for open after it has read the source
//	open           lets that load go on
//	settle         waits until those Gets have ended and what they loaded is kept or not, and writes "settled"
//	close          closes the client, and writes "closed"
func playMember(addr, namespace string, in io.Reader, out io.Writer) int {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	type heldKey struct{}
	opened := make(chan struct{})
	client, err := cache.Open(rdb, cache.Config{
		Namespace: namespace, ReadBudget: patience, WriteBudget: patience, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 3
	}
	defer client.Close()
	users, err := cache.New(client, "users", cache.Single(func(ctx context.Context, key string) (string, error) {
		row, err := rdb.Get(ctx, namespace+"row:"+key).Result()
		if errors.Is(err, redis.Nil) {
			err = cache.ErrNotFound
		}
		say("loaded")
		if ctx.Value(heldKey{}) != nil {
			<-opened
		}
		return row, err
	}), cache.Policy{TTL: 10 * time.Minute, LeaseTTL: leaseOfMembers})
	if err != nil {
		return 3
	}

	var gets sync.WaitGroup
	for lines := bufio.NewScanner(in); lines.Scan(); {
		command, key, _ := strings.Cut(lines.Text(), " ")
		ctx := context.Background()
		if command == "held" {
			ctx = context.WithValue(ctx, heldKey{}, true)
			command, key, _ = strings.Cut(key, " ")
		}
		switch command {
		case "get":
			gets.Go(func() {
				v, err := users.Get(ctx, key)
				if err != nil {
					v = "error: " + err.Error()
				}
				say("got %s", v)
			})
		case "open":
			close(opened)
		case "settle":
			gets.Wait()
			if !within(patience, func() bool { return users.Stats().InFlight == 0 }) {
				return 3
			}
			say("settled")
		case "close":
			if err := client.Close(); err != nil {
				return 3
			}
			say("closed")
		}
	}
	return 0
}

// process is a copy of this test binary in a role.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
}

// startMember starts a member of a world. It is killed when the test ends, also by a panic, and also when it is stopped then.
func (w *world) startMember(t testing.TB) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+roleMember, "NEARSIDE_TEST_REDIS="+w.server.Addr(), "NEARSIDE_TEST_NAMESPACE="+w.namespace)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	mustDo(t, err)
	stdout, err := cmd.StdoutPipe()
	mustDo(t, err)
	mustDo(t, cmd.Start())
	p := &process{cmd: cmd, stdin: stdin, lines: make(chan string, 100)}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	// A shell that blocks on a pipe which ends with us: who stops a process must not leave it stopped for ever.
	guard := exec.Command("sh", "-c", `read _; kill -9 "$1" 2>/dev/null`, "sh", strconv.Itoa(cmd.Process.Pid))
	leash, err := guard.StdinPipe()
	mustDo(t, err)
	mustDo(t, guard.Start())
	t.Cleanup(func() {
		guard.Process.Kill()
		guard.Wait()
		leash.Close()
		cmd.Process.Kill()
		<-reading
		cmd.Wait()
	})
	return p
}

// tell writes a command.
func (p *process) tell(t testing.TB, command string) {
	t.Helper()
	_, err := fmt.Fprintln(p.stdin, command)
	mustDo(t, err)
}

// hear waits for a line.
func (p *process) hear(t testing.TB, want string) {
	t.Helper()
	if line := receive(t, fmt.Sprintf("process %d says %q", p.cmd.Process.Pid, want), p.lines); line != want {
		t.Fatalf("process %d says %q, want %q", p.cmd.Process.Pid, line, want)
	}
}

// stop stops the process, and returns when it stands.
func (p *process) stop(t testing.TB) {
	t.Helper()
	mustDo(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		mustDo(t, err)
		if !status.Stopped() {
			t.Fatalf("process %d ended: %v", p.cmd.Process.Pid, status)
		}
		return
	}
}

// goOn lets a stopped process go on.
func (p *process) goOn(t testing.TB) {
	t.Helper()
	mustDo(t, p.cmd.Process.Signal(syscall.SIGCONT))
}
