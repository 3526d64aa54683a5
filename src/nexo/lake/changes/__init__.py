"""Changes of rows, by key: the newest row of each key, or all its versions (SPEC P4)."""
