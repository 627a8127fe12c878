-- The frame's header, as far as the scripts touch it (frame.go fixes it): 1-based, both ends included.
--   1-3 magic  4 format  5 kind  6 flags (2 more where somebody waits for the lease)  7-8 schema  9-16 loaded at  17-24 fresh until  25-32 expires
--   73-88 lease token (the first bit is set in a writer's)  89-96 lease expiry
-- Times are microseconds of this server's clock, big-endian. They stay below 2^53, so a Lua number holds them exactly.
local function read64(s, i)
  local a, b, c, d, e, f, g, h = string.byte(s, i, i + 7)
  return ((((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g) * 256 + h
end

local function write64(n)
  local h = n % 256
  n = (n - h) / 256
  local g = n % 256
  n = (n - g) / 256
  local f = n % 256
  n = (n - f) / 256
  local e = n % 256
  n = (n - e) / 256
  local d = n % 256
  n = (n - d) / 256
  local c = n % 256
  n = (n - c) / 256
  return string.char((n - n % 256) / 256, n % 256, c, d, e, f, g, h)
end

local function now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Whether the lease in KEYS[1] is the one with this token. What is not a string has none.
local function holds(token)
  local held = redis.pcall('GETRANGE', KEYS[1], 72, 87)
  return held == token
end

-- Whether somebody waits for the lease in KEYS[1]: one alone, or one on a value that is not fresh.
local function awaited() return string.byte(redis.call('GETRANGE', KEYS[1], 5, 5)) >= 2 end

-- Publishes a message, if there is a channel for it. It comes last in a script: if the right is missing, all else is done.
-- Returns '' or why it was not published.
local function publish(channel, message)
  if channel == '' then return '' end
  local reply = redis.pcall('PUBLISH', channel, message)
  return type(reply) == 'table' and reply.err or ''
end
