"""A server among those that replicate to one object store: its role, and what follows from it."""
