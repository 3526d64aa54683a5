"""The bytes of Kafka's protocol: schemas, the codec that reads and writes by them, error codes."""
