"""Sends messages: single ones gathered into batches, or a whole batch."""
