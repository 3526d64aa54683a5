"""Reads messages as a member of a group, and commits offsets."""
