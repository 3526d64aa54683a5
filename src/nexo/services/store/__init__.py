"""The store broker."""
