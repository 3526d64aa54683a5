"""Nexo's own protocol: sessions, relays, and one service per broker."""
