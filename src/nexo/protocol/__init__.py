"""Bytes to commands and back, without any I/O."""
