"""What the brokers promise, one module per broker, and what holds everywhere."""
