"""The client: one object for all four brokers, async as written, sync as generated from it."""
