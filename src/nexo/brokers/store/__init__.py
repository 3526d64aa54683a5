"""The store broker: keys with values in memory, their TTLs and memory budget.

Read in this order: `values` (what a key can hold), `expiry`, `index`, `keyspace` (all keys
together), `engine` (the commands), `collections` (maps, lists, sets), `records` (the snapshot).
"""
