"""Bytes and offsets on disk: the one log everything durable is kept in."""
