"""Pub/Sub: live messages by topic, with retained last values (SPEC C)."""
