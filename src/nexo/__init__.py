"""Nexo: Store, Pub/Sub, Queue and Stream in one Python service."""

__version__ = "0.1.0"
