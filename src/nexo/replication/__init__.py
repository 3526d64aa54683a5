"""Replication to an object store: numbered objects that are created only if absent.

Pure: time and the store's answers are arguments. `shipping` makes the objects and knows when it
is fenced, `following` reads them and claims the lead, `bases` keeps the log short, `objects`
is the port to a store. Nothing here knows brokers, sockets or clouds.
"""
