"""Protocols the server speaks, told apart by a connection's first byte."""
