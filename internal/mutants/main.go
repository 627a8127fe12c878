// Command mutants shows that the tests bite: it puts one deliberate fault after another into the code, without touching the files
// (go test -overlay), and runs the test that must fail then.
//
//	go run ./internal/mutants [-run regexp] [-v]
//
// It ends with an error if a mutant survives, or does not compile.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

func main() {
	pick := flag.String("run", "", "run only the mutants whose name matches")
	verbose := flag.Bool("v", false, "show what the tests say")
	flag.Parse()
	if err := run(*pick, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(pick string, verbose bool) error {
	chosen, err := regexp.Compile(pick)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var failed []error
	for _, m := range mutants {
		if !chosen.MatchString(m.name) {
			continue
		}
		began := time.Now()
		how, err := m.kill(dir, verbose)
		if err != nil {
			err = fmt.Errorf("%s: %w", m.name, err)
			failed = append(failed, err)
			how = err.Error()
		}
		fmt.Printf("%-60s %s (%v)\n", m.name, how, time.Since(began).Round(time.Second))
	}
	return errors.Join(failed...)
}

// mutant is one fault.
type mutant struct {
	name  string
	edits []edit
	test  string // of package cache, which must fail; where there is none, the history must
	on    string // the history's topology, if not standalone
}

// command is the test that must fail.
func (m mutant) command() []string {
	if m.test != "" {
		return []string{"-run=" + m.test, "./cache"}
	}
	return []string{"-run=TestHistory/" + cmp.Or(m.on, "standalone"), "./internal/history", "-history.faults=8", "-history.ops=60000"}
}

// edit replaces a text, which stands in the file once.
type edit struct{ file, old, new string }

// overlay writes the mutated files, and the file that leads go to them.
func (m mutant) overlay(dir string) (path string, err error) {
	texts := map[string]string{}
	for _, e := range m.edits {
		file, err := filepath.Abs(e.file)
		if err != nil {
			return "", err
		}
		text, ok := texts[file]
		if !ok {
			raw, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("%s holds this %d times, and not once: %s", e.file, n, e.old)
		}
		texts[file] = strings.Replace(text, e.old, e.new, 1)
	}
	replace := map[string]string{}
	for file, text := range texts {
		mutated := filepath.Join(dir, fmt.Sprintf("%d%s", len(replace), filepath.Base(file)))
		if err := os.WriteFile(mutated, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[file] = mutated
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}

// kill runs the test with the fault, and tells what it said first.
func (m mutant) kill(dir string, verbose bool) (how string, err error) {
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	args := append([]string{"test", "-overlay=" + overlay, "-count=1", "-timeout=5m"}, m.command()...)
	out, err := exec.Command("go", args...).CombinedOutput()
	if verbose {
		fmt.Printf("%s\n", out)
	}
	switch text := string(out); {
	case err == nil:
		return "", errors.New("SURVIVED " + strings.Join(m.command(), " "))
	case !strings.Contains(text, "--- FAIL"):
		return "", fmt.Errorf("the test broke off: %s", text)
	default:
		for _, said := range regexp.MustCompile(`(?m)^\s+\w+_test\.go:\d+: (.*)$`).FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(said[1], "seed") {
				return fmt.Sprintf("killed: %.140s", said[1]), nil
			}
		}
		return "killed", nil
	}
}
