package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/go-nearside/nearside/cache"
)

const keyPrefix = "key-"

// key returns the i-th key, 12 bytes long.
func key(i int) string {
	b := []byte(keyPrefix + "00000000")
	for at := len(b) - 1; i > 0; at-- {
		b[at] = byte('0' + i%10)
		i /= 10
	}
	return string(b)
}

func keys(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = key(i)
	}
	return all
}

// index is the inverse of key.
func index(key string) (int, error) { return strconv.Atoi(key[len(keyPrefix):]) }

// user is a typed value of about 100 bytes.
type user struct {
	ID         int64
	Name, Mail string
	City       string
	Score      float64
	Admin      bool
}

func userOf(i int) user {
	return user{int64(i), "Ada Lovelace", "ada@example.org", "London", float64(i) / 2, i%2 == 0}
}

func checkUser(i int, u user, err error) error {
	if err == nil && (u.ID != int64(i) || u.Mail != "ada@example.org") {
		err = fmt.Errorf("user %d: got %+v", i, u)
	}
	return err
}

// bytesOf is a value of 100 bytes that begins with its key.
func bytesOf(i int) []byte {
	b := make([]byte, 100)
	copy(b, key(i))
	return b
}

func checkBytes(key string, b []byte, err error) error {
	if err == nil && (len(b) != 100 || string(b[:len(key)]) != key) {
		err = fmt.Errorf("%s: got %q", key, b)
	}
	return err
}

// small is a value of 16 bytes.
type small struct{ A, B int64 }

func smallOf(i int) small { return small{int64(i), int64(i)} }

// jsonCodec is the codec of users, for all subjects the same.
type jsonCodec struct{}

func (jsonCodec) Append(dst []byte, u user) ([]byte, error) {
	b, err := json.Marshal(u)
	return append(dst, b...), err
}

func (jsonCodec) Decode(data []byte) (u user, err error) {
	err = json.Unmarshal(data, &u)
	return u, err
}

// popular draws keys as readers do, a few of them often (Zipf, 1.01). The draws are made beforehand, since they take longer than
// a local hit.
type popular []int32

func newPopular(keys int) popular {
	p := make(popular, 1<<16)
	zipf := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), 1.01, 1, uint64(keys-1))
	for i := range p {
		p[i] = int32(zipf.Uint64())
	}
	return p
}

func (p popular) pick(r *rand.Rand) int { return int(p[r.Uint32()%(1<<16)]) }

var withJSON = cache.Hooks[string, user]{Codec: jsonCodec{}}
