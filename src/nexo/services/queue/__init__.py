"""The queue broker as the host runs it."""
