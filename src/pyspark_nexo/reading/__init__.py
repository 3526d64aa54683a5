"""What queries read: which ranges of a stream, and from where."""
