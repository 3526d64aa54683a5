"""Replication to an object store: numbered objects that are created only if absent.

Pure: time and the store's answers are arguments. `groups` reads the log's objects in order,
`shipping` claims the lead, makes them and knows when it is fenced, `bases` keeps the log short,
`objects` is the port to a store. Nothing here knows brokers, sockets or clouds.
"""
