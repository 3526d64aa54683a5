"""The same API on a real Kafka cluster."""
