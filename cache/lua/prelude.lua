-- The frame's header, as far as the scripts touch it (frame.go fixes it): 1-based, both ends included.
--   1-3 magic  4 format  5 kind  6 flags (2 on a lease: somebody waits)  7-8 schema  9-16 loaded at  17-24 fresh until  25-32 expires
--   73-88 lease token (the first bit is set in a writer's)  89-96 lease expiry
-- Times are microseconds of this server's clock, big-endian. They stay below 2^53, so a Lua number holds them exactly.
local function read64(s, i)
  local n = 0
  for j = i, i + 7 do n = n * 256 + string.byte(s, j) end
  return n
end

local function write64(n)
  local b = {}
  for i = 8, 1, -1 do
    local low = n % 256
    b[i] = low
    n = (n - low) / 256
  end
  return string.char(unpack(b))
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

-- Whether what stands in KEYS[1] is a lease that somebody waits for.
local function awaited() return redis.call('GETRANGE', KEYS[1], 4, 5) == 'l\2' end

-- Publishes a message, if there is a channel for it. It comes last in a script: if the right is missing, all else is done.
-- Returns '' or why it was not published.
local function publish(channel, message)
  if channel == '' then return '' end
  local reply = redis.pcall('PUBLISH', channel, message)
  return type(reply) == 'table' and reply.err or ''
end
