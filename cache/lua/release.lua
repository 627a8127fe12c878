-- Gives a lease back without a value, so that the next one need not wait for its end.
-- KEYS[1]  the key
-- ARGV     1 token  2 channel of the bus, or ''  3 a message for those who wait for this lease
-- Returns  {1 released or 0 lost, time}
local t = now()
if not holds(ARGV[1]) then return {0, t} end
local wake = awaited()
-- A value that stands past its end stood for the lease alone.
if redis.call('GETRANGE', KEYS[1], 4, 4) == 'l' or read64(redis.call('GETRANGE', KEYS[1], 24, 31), 1) <= t then
  redis.call('UNLINK', KEYS[1])
else
  redis.call('SETRANGE', KEYS[1], 72, string.rep('\0', 24))
  if wake then redis.call('SETRANGE', KEYS[1], 5, string.char(string.byte(redis.call('GETRANGE', KEYS[1], 5, 5)) - 2)) end
end
if wake then publish(ARGV[2], ARGV[3]) end
return {1, t}
