"""Where connections come in: the listening port, first bytes, hand-over to a process."""
