-- Takes the lease of a key: the right to fill it. Where nothing stands, lease.go does the same by SET NX: keep the two alike.
-- KEYS[1]  the key
-- ARGV     1 token  2 token of an earlier attempt whose outcome is unknown, or zeros  3 lease TTL, ms  4 schema
--          5 'read' (who misses), 'write' (who is about to write the source: voids every other lease), or 'refresh' (who loads anew
--          what is fresh, and old enough)
--          6 sha1 of the bytes that the caller could not use, or ''  7 a lease frame's header up to its token
--          8 the rest of that frame  9 any byte but 0 if who misses will wait, and wants to be woken
--          10 how old a value is to be that is refreshed, microseconds
-- Returns  {outcome, time, 1 if something that is not a string was removed, the frame if the outcome is VALUE}
local GRANTED, VALUE, BUSY, NEWER, WRITING = 1, 2, 3, 4, 5
local token, earlier, ttl, schema = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local t = now()

local current, repaired = redis.pcall('GET', KEYS[1]), 0
if type(current) == 'table' then
  if not string.find(current.err, 'WRONGTYPE', 1, true) then return current end
  redis.call('UNLINK', KEYS[1])
  current, repaired = false, 1
end

local framed = current and #current >= 104 and string.sub(current, 1, 4) == string.sub(ARGV[7], 1, 4)
if framed and ARGV[6] ~= '' and redis.sha1hex(current) == ARGV[6] then framed = false end

local fresh, stands, flags = false, false, 0 -- a value that is not fresh any more may stand in, and is not thrown away by who only reads
if framed then
  local theirs = string.byte(current, 7) * 256 + string.byte(current, 8)
  if theirs > schema then return {NEWER, t, repaired} end
  local held = string.sub(current, 73, 88)
  -- A frame from the future was written before this server's clock was set back.
  local kind = string.sub(current, 5, 5)
  flags = string.byte(current, 6)
  fresh = theirs == schema and kind ~= 'l' and read64(current, 17) > t and read64(current, 9) <= t
  stands = fresh or ARGV[5] ~= 'write' and theirs == schema and kind == 'v' and read64(current, 25) > t and read64(current, 9) <= t
  if ARGV[5] ~= 'write' then
    local due = ARGV[5] == 'refresh' and t - read64(current, 9) >= tonumber(ARGV[10])
    if fresh and not due then return {VALUE, t, repaired, current} end
    if theirs == schema and read64(current, 89) > t and held ~= earlier then
      if string.byte(held, 1) >= 128 then return {WRITING, t, repaired} end
      if kind ~= 'n' and flags < 2 and ARGV[9] ~= '\0' then redis.call('SETRANGE', KEYS[1], 5, string.char(flags + 2)) end
      return {BUSY, t, repaired}
    end
  end
end

local lease = token .. write64(t + ttl * 1000)
if stands then
  redis.call('SETRANGE', KEYS[1], 72, lease)
  if flags >= 2 then redis.call('SETRANGE', KEYS[1], 5, string.char(flags - 2)) end
  if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
else
  redis.call('SET', KEYS[1], ARGV[7] .. lease .. ARGV[8], 'PX', ttl)
end
return {GRANTED, t, repaired}
