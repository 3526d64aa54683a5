"""Merges small files, expires snapshots and deletes unused files, in a process of its own."""
