"""Removes old records: by age and size (retention), or by key (compaction)."""
