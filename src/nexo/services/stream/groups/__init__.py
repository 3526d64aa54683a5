"""Consumer groups: shared, ordered, and those of the Redis-Streams-style API."""
