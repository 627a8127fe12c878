-- Publishes a message, and names the server that did.
-- KEYS[1] the channel  ARGV[1] the message
-- Returns {server, seconds, microseconds}: the server's run id, with the epoch of its cluster where there is one, or '' if it
-- may not be asked, and its time.
redis.call('PUBLISH', KEYS[1], ARGV[1])
local time = redis.call('TIME')
local info = redis.pcall('INFO', 'server')
if type(info) ~= 'string' then return {'', time[1], time[2]} end
local server = string.match(info, 'run_id:(%w+)') or ''
if string.find(info, 'redis_mode:cluster', 1, true) then
  local cluster = redis.pcall('CLUSTER', 'INFO')
  server = server .. '/' .. (type(cluster) == 'string' and string.match(cluster, 'cluster_current_epoch:(%d+)') or '')
end
return {server, time[1], time[2]}
