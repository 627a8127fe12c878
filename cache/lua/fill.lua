-- Writes a frame, only while the caller's lease stands. The frame has no lease any more.
-- KEYS[1]  the key
-- ARGV     1 token  2 the frame up to its freshness  3 TTL, ms  4 the frame from its fill id up to its lease
--          5 the frame after its lease  6 channel of the bus, or ''  7 a message
--          8 'tell' (publish it, also if the lease is void: it has a number) or 'wake' (only if somebody waits for this lease)
--          9 how long it stands in when it is not fresh any more, ms
-- Returns  {1 written or 0 refused, time, '' or why the message was not published}
local t = now()
if not holds(ARGV[1]) then return {0, t, ARGV[8] == 'tell' and publish(ARGV[6], ARGV[7]) or ''} end
local tell = ARGV[8] == 'tell' or awaited()
local ttl, stale = tonumber(ARGV[3]), tonumber(ARGV[9])
local head = ARGV[2]
if read64(head, 9) > t then head = string.sub(head, 1, 8) .. write64(t) end -- the caller's estimate of this clock was ahead
local ends = write64(t + ttl * 1000) .. write64(t + (ttl + stale) * 1000)
redis.call('SET', KEYS[1], head .. ends .. ARGV[4] .. string.rep('\0', 24) .. ARGV[5], 'PX', ttl + stale)
return {1, t, tell and publish(ARGV[6], ARGV[7]) or ''}
