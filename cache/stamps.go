package cache

import "sync/atomic"

// stampSlots is the number of stamps. A key shares its stamp with about one in 260 000 others, which are then dropped with it.
const stampSlots = 1 << 18

// stamps are the local generations of all keys of a client, found by the hash of the physical key. Whatever was read, or is
// being read, under an older stamp is void. They only move up.
type stamps struct {
	slots [stampSlots]atomic.Uint32
}

func (s *stamps) slot(hash uint64) *atomic.Uint32 { return &s.slots[hash>>40&(stampSlots-1)] }

// now returns the stamp of a key. It must be taken before Redis or the source is read.
func (s *stamps) now(hash uint64) uint32 { return s.slot(hash).Load() }

// move makes void all that was read of a key so far, and returns the new stamp.
func (s *stamps) move(hash uint64) uint32 { return s.slot(hash).Add(1) }
