"""Scripts that Redis runs atomically, so that no other client sees them half done.

``KEYS[1]`` is the stream, ``KEYS[2]`` a hash that counts, by group, what was trimmed
unread. Messages removed from the stream are removed from the pending lists too. They are
looked up first: only the lowest ids can be trimmed, so that costs as much as the trimming.
"""

from __future__ import annotations

_FIELDS = """
local function fields(flat)
  local map = {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end
local function groups()
  local all = {}
  if redis.call('EXISTS', KEYS[1]) == 0 then return all end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    all[#all + 1] = fields(flat)
  end
  return all
end
local function unread(last, stop)
  local count, from = 0, '(' .. last
  while true do
    local page = redis.call('XRANGE', KEYS[1], from, stop, 'COUNT', 1000)
    count = count + #page
    if #page < 1000 then return count end
    from = '(' .. page[#page][1]
  end
end
"""

_TRIM = (
    _FIELDS
    + """
local function trim(max_len)
  local excess = redis.call('XLEN', KEYS[1]) - max_len
  if excess <= 0 then return 0 end
  local all, seen, from = groups(), 0, '-'
  while #all > 0 and seen < excess do
    local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', math.min(1000, excess - seen))
    local ids = {}
    for i, row in ipairs(page) do ids[i] = row[1] end
    for _, group in ipairs(all) do redis.call('XACK', KEYS[1], group['name'], unpack(ids)) end
    seen, from = seen + #ids, '(' .. ids[#ids]
  end
  for _, group in ipairs(all) do
    local lost = unread(group['last-delivered-id'], string.sub(from, 2))
    if lost > 0 then redis.call('HINCRBY', KEYS[2], group['name'], lost) end
  end
  return redis.call('XTRIM', KEYS[1], 'MAXLEN', '=', max_len)
end
"""
)

ADD = (
    _TRIM
    + """
local id = redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2])
trim(tonumber(ARGV[3]))
return id
"""
)
"""``field, value, max_len``: the new id."""

TRIM = _TRIM + "return trim(tonumber(ARGV[1]))"
"""``max_len``: how many were removed."""

DELETE = (
    _FIELDS
    + """
for _, group in ipairs(groups()) do redis.call('XACK', KEYS[1], group['name'], unpack(ARGV)) end
return redis.call('XDEL', KEYS[1], unpack(ARGV))
"""
)
"""The ids: how many there were."""

READ = (
    _FIELDS
    + """
local function pending()
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
    local consumer = fields(flat)
    if consumer['name'] == ARGV[2] then return consumer['pending'] end
  end
  return 0
end
redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], ARGV[1], ARGV[2])
local room = math.min(tonumber(ARGV[3]), tonumber(ARGV[4]) - pending())
if room <= 0 then return {'', {}} end
local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', room,
  'STREAMS', KEYS[1], '>')
if found then return {'', found[1][2]} end
for _, group in ipairs(groups()) do
  if group['name'] == ARGV[1] then return {group['last-delivered-id'], {}} end
end
"""
)
"""``group, consumer, count, max_pending``: messages, or else the id to wait for.

No id is returned when the consumer is at its limit.
"""

CLAIM = """
redis.call('XGROUP', 'CREATECONSUMER', KEYS[1], ARGV[1], ARGV[2])
local from, left, rows = '0-0', tonumber(ARGV[4]), {}
repeat
  local page = redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[3], from,
    'COUNT', math.min(left, 1000))
  from = page[1]
  for _, row in ipairs(page[2]) do
    local held = redis.call('XPENDING', KEYS[1], ARGV[1], row[1], row[1], 1)
    rows[#rows + 1] = {row[1], row[2], held[1][4]}
    left = left - 1
  end
until from == '0-0' or left <= 0
return rows
"""
"""``group, consumer, min_idle_ms, count``: rows of id, fields, delivery count."""

RENEW = """
local kept = {}
for i = 3, #ARGV do
  local id = ARGV[i]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'JUSTID')
    kept[#kept + 1] = id
  end
end
return kept
"""
"""``group, consumer`` and ids: those that the consumer has, idle from now on."""

DROP_GROUP = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
"""
"""``group``: 1 if there was one."""

INFO = (
    _FIELDS
    + """
local function lag(group)
  local last = group['last-delivered-id']
  -- Redis' own number counts what was trimmed before the group got there.
  if #redis.call('XRANGE', KEYS[1], '-', last, 'COUNT', 1) == 0 then
    return redis.call('XLEN', KEYS[1])
  end
  return group['lag'] or unread(last, '+')
end
local rows = {}
for i, group in ipairs(groups()) do
  local consumers = {}
  for j, flat in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group['name'])) do
    local one = fields(flat)
    consumers[j] = {one['name'], one['pending'], one['idle']}
  end
  rows[i] = {group['name'], group['last-delivered-id'], group['pending'], lag(group),
    redis.call('HGET', KEYS[2], group['name']) or 0, consumers}
end
return rows
"""
)
"""Nothing: rows of name, last id, pending, lag, trimmed unread, consumers."""
