package rediscall

import (
	"context"
	"crypto/sha1"
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

// Command is one command to Redis that is never sent twice by the client.
type Command struct {
	*redis.Cmd
	script *Script  // nil for a plain command
	texts  []string // of a script's call: the key and the arguments
}

// NoRetry tells go-redis not to send the command again, alone or in a pipeline.
func (*Command) NoRetry() bool { return true }

// NewCommand makes a command whose first argument is its name and whose second, if any, is its key.
func NewCommand(ctx context.Context, args ...any) *Command {
	return &Command{Cmd: redis.NewCmd(ctx, args...)}
}

// Key is the key of the command, "" if it has none.
func (c *Command) Key() string {
	if c.script != nil {
		return c.texts[0]
	}
	if len(c.Args()) < 2 {
		return ""
	}
	switch key := c.Args()[1].(type) {
	case string:
		return key
	case *string:
		return *key
	}
	return ""
}

// Copy makes the same command anew, without what came of it.
func (c *Command) Copy(ctx context.Context) *Command {
	if c.script != nil {
		return c.script.Command(ctx, c.texts[0], c.texts[1:]...)
	}
	return NewCommand(ctx, c.Args()...)
}

// Script is a Lua script that takes one key. Scripts are values of the program: make them once.
type Script struct {
	source string
	sha    string
}

// NewScript makes a script from its source.
func NewScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{source: source, sha: hex.EncodeToString(sum[:])}
}

// Command makes a call of the script on one key. The runner loads the script where the server does not know it.
func (s *Script) Command(ctx context.Context, key string, args ...string) *Command {
	c := s.call(ctx, "evalsha", &s.sha, key, args)
	c.script = s
	return c
}

// fewTexts is how many texts a call has without further allocations: those of the largest script, a key and ten arguments.
const fewTexts = 11

// call makes a command. Its parts are allocated in one piece, and the arguments given by reference.
func (s *Script) call(ctx context.Context, name any, what *string, key string, args []string) *Command {
	c := &struct {
		Command
		texts [fewTexts]string
		args  [3 + fewTexts]any
	}{}
	texts := append(append(c.texts[:0], key), args...)
	all := append(c.args[:0], name, what, 1)
	for i := range texts {
		all = append(all, &texts[i])
	}
	c.Cmd, c.Command.texts = redis.NewCmd(ctx, all...), texts
	c.SetFirstKeyPos(3)
	return &c.Command
}

// spellOut replaces arguments that were given by reference by their texts, for hooks that show them.
func (c *Command) spellOut() {
	args := c.Args()
	for i, arg := range args {
		if text, ok := arg.(*string); ok {
			args[i] = *text
		}
	}
}

// eval makes the same call with the whole source, which also teaches it to the server.
func (c *Command) eval(ctx context.Context) *Command {
	return c.script.call(ctx, "eval", &c.script.source, c.texts[0], c.texts[1:])
}

// unknownScript tells whether the server refused the call because it does not know the script. Nothing ran then.
func (c *Command) unknownScript() bool {
	return c.script != nil && c.Err() != nil && // without the allocation in HasErrorPrefix
		redis.HasErrorPrefix(c.Err(), "NOSCRIPT")
}
