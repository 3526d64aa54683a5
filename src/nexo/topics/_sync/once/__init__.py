"""Exactly-once processing: what was done is kept with what it changed."""
