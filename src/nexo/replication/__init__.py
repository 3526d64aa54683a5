"""Replication to an object store: numbered objects that are created only if absent.

`log_objects` has the objects of the log. `shipping` claims the lead, makes them and knows when it
is fenced; `replay` applies them to a folder; `bases` keeps the log short; `objects` is the port to
a store. In these, time and the store's answers are arguments. Only `cloud` knows clouds; nothing
here knows brokers or sockets.
"""
