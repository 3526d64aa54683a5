"""Logs: publish, consume in groups, replay, transactions."""
