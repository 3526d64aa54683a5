"""Nexo's own protocol: sessions, links between processes, and the requests of each broker."""
