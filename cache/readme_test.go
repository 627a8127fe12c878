package cache_test

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeCodeIsTheExample: the code in the README is the one that Example runs.
func TestReadmeCodeIsTheExample(t *testing.T) {
	between := func(file, from, to string) string {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(raw), from)
		text, _, ends := strings.Cut(rest, to)
		if !found || !ends {
			t.Fatalf("%s has no part from %q to %q", file, from, to)
		}
		return text
	}
	readme := between("../README.md", "```go\n", "```")
	example := strings.ReplaceAll(between("example_test.go", "// README: begin\n", "\t// README: end"), "\n\t", "\n")
	if want := strings.TrimPrefix(example, "\t"); readme != want {
		t.Errorf("the README shows\n%s\nand the example runs\n%s", readme, want)
	}
}
