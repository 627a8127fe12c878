package main

import "testing"

// TestMutantsFitTheCode: each edit finds its text, so that the list does not rot between two runs of make mutants.
func TestMutantsFitTheCode(t *testing.T) {
	t.Chdir("../..")
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("%s: twice", m.name)
		}
		names[m.name] = true
		if _, err := m.overlay(t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
