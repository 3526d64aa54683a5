"""The sync client: generated, except for the modules that touch sockets and threads."""
