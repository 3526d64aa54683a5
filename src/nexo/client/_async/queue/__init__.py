"""Durable jobs: push, work, inspect."""
