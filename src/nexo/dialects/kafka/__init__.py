"""Kafka's protocol on the stream broker (SPEC L)."""
