package redistest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one running redis-server, a child of this test binary. It needs no goroutine: whether the child lives is read from a
// pipe whose other end only the child holds.
type process struct {
	cmd   *exec.Cmd
	alive *os.File // reads EOF once the child is gone
	guard *exec.Cmd
	leash *os.File // the guard's stdin: held open as long as this test binary lives
}

// startProcess runs bin with its output appended to log.
func startProcess(bin string, args []string, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	alive, held, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close()

	p := &process{cmd: exec.Command(bin, args...), alive: alive}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.ExtraFiles = []*os.File{held}
	if err := p.cmd.Start(); err != nil {
		alive.Close()
		return nil, err
	}
	if err := p.setGuard(); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// setGuard starts a shell that kills the server when this test binary dies without stopping it: a panic, a test that ran out of
// time, a signal. The shell blocks on a pipe that ends with us, and leaves our process group so that Ctrl-C does not take it first.
func (p *process) setGuard() error {
	stdin, leash, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	guard := exec.Command("sh", "-c", `read _; kill -9 "$1"`, "sh", strconv.Itoa(p.pid()))
	guard.Stdin = stdin
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := guard.Start(); err != nil {
		leash.Close()
		return fmt.Errorf("start the guard of redis-server: %w", err)
	}
	p.guard, p.leash = guard, leash
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// exited waits at most d and reports whether the process has ended.
func (p *process) exited(d time.Duration) bool {
	if err := p.alive.SetReadDeadline(time.Now().Add(d)); err != nil {
		return true
	}
	_, err := p.alive.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// pause returns when the process has really stopped: a signal alone may be overtaken by the next command.
func (p *process) pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.pid(), &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case !status.Stopped():
			return errors.New("redis-server ended instead of stopping")
		}
		return nil
	}
}

func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// stop asks the process to end, paused or not, and kills it when it does not.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGCONT)
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.exited(stopLimit)
	p.kill()
}

// kill ends the process at once and reaps it. The guard goes first: from the reaping on, the pid may belong to somebody else.
func (p *process) kill() {
	if p.guard != nil {
		p.guard.Process.Kill()
		p.guard.Wait()
		p.leash.Close()
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.alive.Close()
}

const install = "install it with `apt-get install redis-server` (Debian, Ubuntu) or `brew install redis` (macOS)"

var versionPattern = regexp.MustCompile(`\bv=(\d+)\.(\d+)`)

// findServer returns the path of a redis-server that is new enough.
func findServer() (string, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("no redis-server on PATH: %s", install)
	}
	out, err := exec.Command(bin, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", bin, err)
	}
	version := versionPattern.FindStringSubmatch(string(out))
	if version == nil {
		return "", fmt.Errorf("%s --version says %q: no version in it", bin, strings.TrimSpace(string(out)))
	}
	if major, _ := strconv.Atoi(version[1]); major < 7 {
		return "", fmt.Errorf("%s is version %s.%s, but 7.0 or newer is needed: %s", bin, version[1], version[2], install)
	}
	return bin, nil
}
