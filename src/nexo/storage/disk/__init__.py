"""Files: the operating system, memory, and what is dirty; see `nexo.storage.ports`."""
