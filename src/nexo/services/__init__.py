"""Use cases of the brokers: durable, waiting, permitted, and free of any protocol."""
