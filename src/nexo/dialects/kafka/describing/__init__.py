"""Requests of administrators' tools that only look: producers, partitions, the controller."""
