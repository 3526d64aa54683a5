"""Tables made from a stream's table: the newest record per key, and dead letters."""
