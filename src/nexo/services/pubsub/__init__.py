"""The pub/sub broker."""
