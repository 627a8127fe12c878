-- Prolongs a lease that still stands.
-- KEYS[1]  the key
-- ARGV     1 token  2 lease TTL, ms
-- Returns  {1 prolonged or 0 lost, time}
local t = now()
if not holds(ARGV[1]) then return {0, t} end
local ttl = tonumber(ARGV[2])
redis.call('SETRANGE', KEYS[1], 88, write64(t + ttl * 1000))
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return {1, t}
