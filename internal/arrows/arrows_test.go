// Package arrows is only a test: it holds who may import whom, what the root
// module may require, and what may stand at the top of the repository.
package arrows

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/go-nearside/nearside"
	root   = "../.."
)

// mayImport says which other top-level folders the code of a top-level folder
// may import. Tests are free to import more.
var mayImport = map[string][]string{
	"cache":        {"invalidation", "metrics", "internal"},
	"invalidation": {"metrics", "internal"},
	"lock":         {"metrics", "internal"},
	"ratelimit":    {"metrics", "internal"},
	"metrics":      {"internal"},
	"internal":     {},
}

// testOnly are the packages that only tests, and each other, may import.
var testOnly = []string{"internal/redistest"}

// coreModules are what the root module may require for its code.
var coreModules = []string{
	"github.com/cespare/xxhash/v2",
	"github.com/dgraph-io/ristretto/v2",
	"github.com/redis/go-redis/v9",
	"github.com/sony/gobreaker/v2",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/metric", // the API's parts are modules of their own
	"go.opentelemetry.io/otel/trace",
	"golang.org/x/sync",
}

// testModules are what the root module may require for its tests only.
var testModules = []string{
	"github.com/alicebob/miniredis/v2",
	"github.com/anishathalye/porcupine",
	"go.uber.org/goleak",
	"pgregory.net/rapid",
}

// topLevel are the names that may stand at the top of the repository, beside
// those that begin with a dot and what .gitignore leaves out.
var topLevel = []string{
	"go.mod", "go.sum", "README.md", "LICENSE", "CHANGELOG.md", "Makefile",
	"cache", "invalidation", "lock", "ratelimit", "metrics", "internal", "examples",
}

// pkg is a package of the root module: its folder, relative to the root and
// with slashes, and what its files without _test import.
type pkg struct {
	dir     string
	imports []string
}

// wrongArrows says which imports of pkgs are forbidden, and why.
func wrongArrows(pkgs []pkg) (wrong []string) {
	for _, p := range pkgs {
		from, _, _ := strings.Cut(p.dir, "/")
		allowed, known := mayImport[from]
		if !known {
			wrong = append(wrong, fmt.Sprintf("%s: no package may be here", p.dir))
			continue
		}
		forTests := slices.Contains(testOnly, p.dir)
		for _, path := range p.imports {
			if slices.ContainsFunc(testModules, func(m string) bool { return within(path, m) }) {
				if !forTests {
					wrong = append(wrong, fmt.Sprintf("%s imports %s: for tests only", p.dir, path))
				}
				continue
			}
			if !within(path, module) {
				continue
			}
			dir := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
			to, _, _ := strings.Cut(dir, "/")
			switch {
			case slices.Contains(testOnly, dir) && !forTests:
				wrong = append(wrong, fmt.Sprintf("%s imports %s: for tests only", p.dir, dir))
			case to != from && !slices.Contains(allowed, to):
				wrong = append(wrong, fmt.Sprintf("%s imports %s: %s may import only %q of this module", p.dir, dir, from, allowed))
			}
		}
	}
	return wrong
}

// within tells whether path is the module or package base, or lies below it.
func within(path, base string) bool {
	return path == base || strings.HasPrefix(path, base+"/")
}

// goMod is the part of go mod edit -json that is looked at.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Tool []struct{ Path string }
}

// wrongRequirements says what the root go.mod may not hold.
func wrongRequirements(m goMod) (wrong []string) {
	for _, r := range m.Require {
		if !r.Indirect && !slices.Contains(coreModules, r.Path) && !slices.Contains(testModules, r.Path) {
			wrong = append(wrong, "require "+r.Path)
		}
	}
	for _, t := range m.Tool {
		wrong = append(wrong, "tool "+t.Path)
	}
	return wrong
}

// strayNames says which of the names may not stand at the top.
func strayNames(names []string) (stray []string) {
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "."), slices.Contains(topLevel, name):
		case slices.Contains([]string{".test", ".out", ".prof"}, filepath.Ext(name)), name == "go.work", name == "go.work.sum":
		default:
			stray = append(stray, name)
		}
	}
	return stray
}

// readPackages reads the packages of the root module: nested modules are
// theirs alone. Build constraints are ignored, so that no file hides an import.
func readPackages() (pkgs []pkg, err error) {
	ctx := build.Default
	ctx.UseAllFiles = true
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == root {
			return err
		}
		if name := d.Name(); strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" {
			return filepath.SkipDir
		}
		if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
			return filepath.SkipDir
		}
		p, err := ctx.ImportDir(path, 0)
		if noGo := (*build.NoGoError)(nil); errors.As(err, &noGo) {
			return nil
		}
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, path)
		pkgs = append(pkgs, pkg{filepath.ToSlash(dir), p.Imports})
		return err
	})
	return pkgs, err
}

func TestImports(t *testing.T) {
	pkgs, err := readPackages()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(pkgs, func(p pkg) bool { return p.dir == "internal/arrows" }) {
		t.Fatalf("not even this package was found: %v", pkgs)
	}
	for _, w := range wrongArrows(pkgs) {
		t.Error(w)
	}
}

func TestRequirements(t *testing.T) {
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(root, "go.mod")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var m goMod
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	for _, w := range wrongRequirements(m) {
		t.Errorf("go.mod: %s: not one of the modules this library may depend on; it belongs in a nested module", w)
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, name := range strayNames(names) {
		t.Errorf("%s may not stand at the top of the repository", name)
	}
}

// The checks themselves must bite.

func TestWrongArrowsAreFound(t *testing.T) {
	tests := []struct {
		from, to string
		ok       bool
	}{
		{"cache", module + "/invalidation", true},
		{"cache", module + "/metrics", true},
		{"cache", module + "/internal/frame", true},
		{"cache/codec", module + "/cache", true},
		{"invalidation", module + "/metrics", true},
		{"lock", module + "/metrics", true},
		{"ratelimit", module + "/internal/script", true},
		{"metrics", module + "/internal/telemetry", true},
		{"internal/frame", module + "/internal/script", true},
		{"internal/redistest", "pgregory.net/rapid", true},
		{"cache", "github.com/redis/go-redis/v9", true},
		{"cache", module + "-other/lock", true}, // another module

		{"cache", module + "/lock", false},
		{"cache", module + "/ratelimit", false},
		{"cache", module, false},
		{"cache", module + "/internal/redistest", false},
		{"cache", "github.com/alicebob/miniredis/v2", false},
		{"cache", "github.com/alicebob/miniredis/v2/server", false},
		{"invalidation", module + "/cache", false},
		{"invalidation", module + "/lock", false},
		{"lock", module + "/cache", false},
		{"lock", module + "/cache/codec", false},
		{"lock", module + "/ratelimit", false},
		{"lock", module + "/invalidation", false},
		{"ratelimit", module + "/cache", false},
		{"ratelimit", module + "/lock", false},
		{"ratelimit/http", module + "/invalidation", false},
		{"metrics", module + "/cache", false},
		{"metrics", module + "/invalidation", false},
		{"internal/frame", module + "/cache", false},
		{"internal/frame", module + "/metrics", false},
		{"internal/frame", module + "/internal/redistest", false},
		{"internal/redistest", module + "/cache", false},
		{"util", "fmt", false},
	}
	for _, tt := range tests {
		wrong := wrongArrows([]pkg{{"internal/clean", []string{"fmt"}}, {tt.from, []string{"context", tt.to}}})
		if ok := len(wrong) == 0; ok != tt.ok {
			t.Errorf("%s -> %s: allowed is %v, want %v (%q)", tt.from, tt.to, ok, tt.ok, wrong)
		}
	}
}

func TestWrongRequirementsAreFound(t *testing.T) {
	var m goMod
	err := json.Unmarshal([]byte(`{
		"Require": [
			{"Path": "github.com/redis/go-redis/v9"},
			{"Path": "go.uber.org/goleak"},
			{"Path": "go.uber.org/atomic", "Indirect": true},
			{"Path": "github.com/redis/go-redis/v8"}
		],
		"Tool": [{"Path": "honnef.co/go/tools/cmd/staticcheck"}]
	}`), &m)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"require github.com/redis/go-redis/v8", "tool honnef.co/go/tools/cmd/staticcheck"}
	if got := wrongRequirements(m); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStrayNamesAreFound(t *testing.T) {
	names := append([]string{".git", ".ci", "cache.test", "cpu.prof", "cover.out", "go.work", "util", "main.go", "docs"}, topLevel...)
	want := []string{"util", "main.go", "docs"}
	if got := strayNames(names); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
