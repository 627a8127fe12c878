package history

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
	"github.com/go-nearside/nearside/invalidation"
)

// The variables that make a copy of this test binary a member: a process with a cache, for faults that stop a whole process.
const (
	memberVariable = "NEARSIDE_HISTORY_MEMBER" // the namespace
	redisVariable  = "NEARSIDE_HISTORY_REDIS"  // the kind of the topology, and its addresses
	sourceVariable = "NEARSIDE_HISTORY_SOURCE" // the address of the database
)

func TestMain(m *testing.M) {
	if namespace := os.Getenv(memberVariable); namespace != "" {
		if err := playMember(namespace, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redistest.Run(m)
}

// playMember does what it reads, one command a line, and answers each with one line: "= VALUE" or "! ERROR". Beside that it
// writes "mark KEY/VERSION" when it was told of that version.
//
//	get KEY                 a Get
//	invalidate KEY VERSION  an Invalidate, with a mark behind it
func playMember(namespace string, in io.Reader, out io.Writer) error {
	rdb := dial(os.Getenv(redisVariable))
	defer rdb.Close()
	source := redis.NewClient(&redis.Options{Addr: os.Getenv(sourceVariable)})
	defer source.Close()
	client, rows, err := openCache(rdb, database{source}, namespace, true)
	if err != nil {
		return err
	}
	defer client.Close()
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	client.Bus().Subscribe(marksName, invalidation.Handler{Keys: func(marks []string) {
		for _, m := range marks {
			if client.Bus().Live() {
				say("mark %s", m)
			}
		}
	}})
	ctx := context.Background()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		word := strings.Fields(lines.Text())
		value, err := "", error(nil)
		switch word[0] {
		case "get":
			value, err = rows.Get(ctx, word[1])
		case "invalidate":
			if err = rows.Invalidate(ctx, word[1]); err == nil {
				version, _ := strconv.Atoi(word[2])
				mark(ctx, client.Bus(), rdb, namespace, word[1], version)
			}
		}
		if err != nil {
			say("! %s", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			say("= %s", value)
		}
	}
	return nil
}

// dial makes a client from a kind and addresses.
func dial(where string) redis.UniversalClient {
	kind, list, _ := strings.Cut(where, " ")
	addrs := strings.Split(list, ",")
	switch kind {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: addrs})
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	}
	return redis.NewClient(&redis.Options{Addr: addrs[0]})
}

// member is an instance in a process of its own.
type member struct {
	label   string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers chan string
	one     sync.Mutex // held for a command and its answer
}

var errMember = errors.New("the member failed")

func (w *world) startMember(t testing.TB, label string) *member {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberVariable+"="+w.namespace, redisVariable+"="+w.topology.where, sourceVariable+"="+w.source.rdb.Options().Addr)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &member{label: label, cmd: cmd, stdin: stdin, answers: make(chan string)}
	go func() {
		defer close(m.answers)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			if text, ok := strings.CutPrefix(s.Text(), "mark "); ok {
				w.told(label, text)
			} else {
				m.answers <- s.Text()
			}
		}
	}()
	// A shell that blocks on a pipe which ends with us, so that no member stays stopped for ever.
	guard := exec.Command("sh", "-c", `read _; kill -9 "$1" 2>/dev/null`, "sh", strconv.Itoa(cmd.Process.Pid))
	leash, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		guard.Process.Kill()
		guard.Wait()
		leash.Close()
		cmd.Process.Kill()
		for range m.answers {
		}
		cmd.Wait()
	})
	return m
}

func (m *member) call(format string, args ...any) (string, error) {
	m.one.Lock()
	defer m.one.Unlock()
	if _, err := fmt.Fprintf(m.stdin, format+"\n", args...); err != nil {
		return "", err
	}
	line, ok := <-m.answers
	if value, is := strings.CutPrefix(line, "= "); is && ok {
		return value, nil
	}
	return "", fmt.Errorf("%w: %s", errMember, line)
}

func (m *member) name() string { return m.label }

func (m *member) get(_ context.Context, key string) (string, error) { return m.call("get %s", key) }

// getMany asks for one after the other.
func (m *member) getMany(ctx context.Context, keys []string) (map[string]string, error) {
	values := map[string]string{}
	for _, key := range keys {
		v, err := m.get(ctx, key)
		if err != nil {
			return values, err
		}
		values[key] = v
	}
	return values, nil
}

// update commits first, since a commit here would be in another process than the cache.
func (m *member) update(ctx context.Context, key string, commit func() (string, int, error)) (version int, err error) {
	_, version, err = commit()
	if err != nil {
		return version, err
	}
	return version, m.invalidate(ctx, key, version)
}

func (m *member) invalidate(_ context.Context, key string, version int) error {
	_, err := m.call("invalidate %s %d", key, version)
	return err
}

// pause stops the process; resume lets it go on.
func (m *member) pause() error  { return m.cmd.Process.Signal(syscall.SIGSTOP) }
func (m *member) resume() error { return m.cmd.Process.Signal(syscall.SIGCONT) }
