// Package tools is empty: its go.mod pins the tools that check this
// repository, so that no user's go.mod ever sees them.
package tools
