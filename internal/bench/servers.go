package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// place is where the servers are.
type place struct {
	Redis   string
	Cluster []string
}

const (
	nodes    = 3
	slots    = 16384
	patience = 20 * time.Second
)

// startServers starts one redis-server alone and three that are a cluster.
func startServers() (at place, stop func(), err error) {
	var running []*server
	stop = func() {
		for _, s := range running {
			s.stop()
		}
	}
	for i := range 1 + nodes {
		var args []string
		if i > 0 {
			args = []string{"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"}
		}
		s, err := startServer(args)
		if err != nil {
			stop()
			return at, nil, err
		}
		running = append(running, s)
		if i == 0 {
			at.Redis = s.addr
		} else {
			at.Cluster = append(at.Cluster, s.addr)
		}
	}
	if err := join(at.Cluster); err != nil {
		stop()
		return at, nil, fmt.Errorf("cluster: %w", err)
	}
	return at, stop, nil
}

// server is one redis-server. Its parent is a shell that ends it when this process lets go of the shell's stdin, as it does by
// dying too. The shell is in a process group of its own, so that Ctrl-C does not take it first.
type server struct {
	addr, dir string
	shell     *exec.Cmd
	leash     io.Closer
}

func startServer(args []string) (*server, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	var failed error
	for range 5 { // somebody else may get the port first
		s, err := tryServer(bin, args)
		if err == nil {
			return s, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

func tryServer(bin string, args []string) (*server, error) {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	port := freePort()
	s := &server{addr: net.JoinHostPort("127.0.0.1", port), dir: dir}
	s.shell = exec.Command("sh", append([]string{"-c", `"$@" & server=$!; read _; kill -9 $server; wait`, "sh",
		bin, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"}, args...)...)
	s.shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.leash, err = s.shell.StdinPipe(); err == nil {
		err = s.shell.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	admin := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer admin.Close()
	err = await(func() error {
		// Its directory tells that it is ours.
		said, err := admin.ConfigGet(context.Background(), "dir").Result()
		if err == nil && said["dir"] != dir {
			err = fmt.Errorf("another server is on %s", s.addr)
		}
		return err
	})
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *server) stop() {
	s.leash.Close()
	_ = s.shell.Wait() // it says that read met the end
	os.RemoveAll(s.dir)
}

// freePort draws from below the ports that systems give to outgoing connections; a cluster's node also takes the one 10000 above.
func freePort() string {
	for {
		port := strconv.Itoa(10000 + rand.IntN(10000))
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			l.Close()
			return port
		}
	}
}

// join makes a cluster of nodes, and returns when each of them sees every slot served.
func join(addrs []string) error {
	ctx := context.Background()
	var clients []*redis.Client
	for i, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer client.Close()
		clients = append(clients, client)
		err := errors.Join(
			client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(),
			client.ClusterAddSlotsRange(ctx, i*slots/nodes, (i+1)*slots/nodes-1).Err(),
		)
		for _, other := range addrs[:i] {
			host, port, _ := net.SplitHostPort(other)
			err = errors.Join(err, client.ClusterMeet(ctx, host, port).Err())
		}
		if err != nil {
			return err
		}
	}
	return await(func() error {
		for _, client := range clients {
			info, err := client.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprint("cluster_known_nodes:", nodes)) {
				return errors.New(info)
			}
		}
		return nil
	})
}

// await asks until there is no error, but not for ever.
func await(ask func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err := ask(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
