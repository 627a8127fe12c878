-- Deletes a key, with whatever lease stands there, and tells the others.
-- KEYS[1]  the key
-- ARGV     1 channel of the bus  2 the message
-- Returns  {1, time, '' or why the message was not published}
local t = now()
redis.call('UNLINK', KEYS[1])
return {1, t, publish(ARGV[1], ARGV[2])}
