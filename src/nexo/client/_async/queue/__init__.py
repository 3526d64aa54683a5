"""Durable jobs: push, work, look."""
