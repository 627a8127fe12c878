package rediscall_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/rediscall"
	"github.com/go-nearside/nearside/internal/redistest"
)

// Where a new connection is refused by an error reply (a password that was changed, a database that is not there, a hook of
// the user's), nothing was sent: no command may pass for answered.
func TestARefusedConnectionAnswersNothing(t *testing.T) {
	server := redistest.Shared(t)
	for name, test := range map[string]struct {
		option func(*redis.Options)
		class  rediscall.Class
	}{
		"a wrong password": {func(o *redis.Options) { o.Username, o.Password = "nobody", "x" }, rediscall.Denied},
		"no such database": {func(o *redis.Options) { o.DB = 1 << 20 }, rediscall.Reply},
		"a hook's refusal": {func(o *redis.Options) { o.OnConnect = refuseByRedis }, rediscall.WrongType},
		"a hook's own word": {func(o *redis.Options) {
			o.OnConnect = func(context.Context, *redis.Conn) error { return errors.New("no") }
		}, rediscall.Other},
	} {
		for _, clone := range []bool{true, false} {
			for _, shape := range shapes {
				t.Run(name+"/"+pick(clone, "clone", "no clone")+"/"+shape.name, func(t *testing.T) {
					var rdb redis.UniversalClient = server.Client(t, test.option)
					if !clone {
						rdb = opaque{rdb}
					}
					keys := shape.keys(server.Prefix(t))
					for _, key := range keys {
						admin(t, server, "set", key, "v")
					}
					r := newRunner(t, rdb, ample)
					commands := make([]*rediscall.Command, len(keys))
					for i, key := range keys {
						commands[i] = rediscall.NewCommand(background, "unlink", key)
					}
					err := r.Do(background, commands...)
					for _, c := range commands {
						if err == nil && c.Err() == nil {
							t.Errorf("%v passes for answered, by %v", c, c.Val())
						}
						if err == nil {
							isClass(t, c.Err(), test.class)
						}
					}
					if err != nil {
						isClass(t, err, test.class)
					}
					holds(t, server, "v", keys...)
				})
			}
		}
	}
}

func refuseByRedis(ctx context.Context, conn *redis.Conn) error {
	return conn.Eval(ctx, "return redis.error_reply('WRONGTYPE odd')", nil).Err()
}

func TestNothingToDo(t *testing.T) {
	r := newRunner(t, redistest.Shared(t).Client(t), ample)
	if err := r.Do(background); err != nil {
		t.Error(err)
	}
}
