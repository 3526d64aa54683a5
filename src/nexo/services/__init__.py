"""Use cases of the brokers: durable, waiting, permitted, and independent of any protocol."""
