package cache

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	// ErrNotFound says that the source has no such row. A loader returns it, wrapped or not, or leaves the key out of its
	// answer; it is cached for Policy.NegativeTTL.
	ErrNotFound = errors.New("cache: not found")

	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("cache: client is closed")

	// ErrBadKey says that a key cannot be encoded: it is empty, longer than MaxKeyBytes, or its encoder failed.
	ErrBadKey = errors.New("cache: bad key")

	// ErrCodec says that the codec could not encode a value.
	ErrCodec = errors.New("cache: codec failed")

	// ErrUnconfirmed says that Redis did not confirm a delete. The old value may still stand there, and other processes may
	// serve it until its TTL ends; this process does not: it does without Redis for the key. The delete is tried again behind, twice a
	// second while Redis answers, until it is confirmed or what stands there has expired (Stats.UnconfirmedKeys counts what is open),
	// and once more by Close. So there is nothing to do but to know that others lag; a process that dies loses what is open, and of more
	// than 100 000 keys of a cache the rest is not tried again (Stats.Overflowed). Beside ErrClosed nothing was deleted, and nothing
	// will be.
	ErrUnconfirmed = errors.New("cache: Redis did not confirm that the old entry is gone")

	// ErrNotKept says that a Set did not put its value into the tiers: Redis refused it, being full or read-only as a rule, or somebody
	// wrote or invalidated the key meanwhile. What stood there before is deleted.
	ErrNotKept = errors.New("cache: Redis did not take the value")

	// ErrOverloaded says that the source is not asked, since as many loads run as Config.MaxLoads allows, and too many wait. Answer
	// with 503, or what else tells the caller to come later.
	ErrOverloaded = errors.New("cache: too many loads")

	// ErrUnavailable says that Redis gave no answer, and that Policy.Fallback does not let the loader answer instead.
	ErrUnavailable = errors.New("cache: Redis gave no answer, and Policy.Fallback is FallbackError")

	// ErrUnpublished says that Redis did what it was asked, and refused to tell the other processes, as a rule because its user
	// may not publish on the channels of the bus: see Rights in the package comment. The others may serve what they have for
	// LocalTTL at most. To call it again helps once that is mended.
	ErrUnpublished = errors.New("cache: the other processes were not told")
)

// ConfigError says which field of a configuration cannot be used, and what to give instead.
type ConfigError struct {
	Field  string
	Value  any
	Remedy string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("cache: %s is %v: %s", e.Field, e.Value, e.Remedy)
}

// PanicError says that a loader or codec panicked, or ended its goroutine by runtime.Goexit. All who waited for it get
// the same one.
type PanicError struct {
	Value any    // what was passed to panic
	Stack []byte // the stack of the goroutine that panicked
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// KeyErrors holds the errors of the keys of a batch that failed. The other keys of the batch were answered. errors.Is and
// errors.As look into each. A loader may return one beside its values, not wrapped: one that is wrapped speaks of all keys.
type KeyErrors[K comparable] struct {
	ByKey map[K]error
}

func (e *KeyErrors[K]) Error() string {
	if e == nil {
		return "no key failed"
	}
	if len(e.ByKey) == 1 {
		for key, err := range e.ByKey {
			return fmt.Sprintf("key %s: %v", keyText(key), err)
		}
	}
	const shown = 3
	texts := make([]string, 0, len(e.ByKey))
	for key, err := range e.ByKey {
		texts = append(texts, fmt.Sprintf("%s: %v", keyText(key), err))
	}
	slices.Sort(texts) // so that a failure reads the same each time
	more := ""
	if n := len(texts) - shown; n > 0 {
		texts, more = texts[:shown], fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("%d keys failed; %s%s", len(e.ByKey), strings.Join(texts, "; "), more)
}

// Unwrap returns the errors of all keys.
func (e *KeyErrors[K]) Unwrap() []error {
	if e == nil {
		return nil
	}
	return slices.Collect(maps.Values(e.ByKey))
}

// keyText prints a key for a message, with a bound.
func keyText(key any) string {
	verb := "%#v"
	if _, ok := key.(fmt.Stringer); ok {
		verb = "%q" // of what String returns
	}
	text := fmt.Sprintf(verb, key)
	if len(text) > 100 {
		text = text[:100] + "..."
	}
	return text
}

// opError wraps the error of an operation once, with the operation, the cache and the key.
func opError(op, name string, key any, err error) error {
	return fmt.Errorf("cache: %s %s %s: %w", op, name, keyText(key), err)
}
