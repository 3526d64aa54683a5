"""Topics for asyncio; written by hand, and the source of the sync twin."""
