package main

import (
	"net"

	"github.com/alicebob/miniredis/v2"
)

// embedded is a Redis in this process. It cannot hang, but fail in other ways.
type embedded struct {
	redis *miniredis.Miniredis
}

func startEmbedded() (backend, error) {
	redis := miniredis.NewMiniRedis()
	if err := redis.StartAddr(net.JoinHostPort("127.0.0.1", freePort())); err != nil {
		return nil, err
	}
	redis.ClockTTL(true) // keys expire by the clock, as in a real Redis
	return &embedded{redis}, nil
}

func (e *embedded) addr() string { return e.redis.Addr() }

func (e *embedded) phases() []phase {
	return []phase{
		{name: "healthy"},
		{name: "answers LOADING", sick: true, act: func() error {
			e.redis.SetError("LOADING Redis is loading the dataset in memory")
			return nil
		}},
		{name: "answers again", act: func() error {
			e.redis.SetError("")
			return nil
		}},
		{name: "refuses", sick: true, act: func() error {
			e.redis.Close()
			return nil
		}},
		{name: "restarted empty", act: func() error {
			e.redis.FlushAll()
			return e.redis.Restart()
		}},
		{name: "recovered"},
	}
}

func (e *embedded) answer() {}

func (e *embedded) close() { e.redis.Close() }
