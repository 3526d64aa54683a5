"""The async client. ``tools/unasync.py`` makes the sync one from it."""
