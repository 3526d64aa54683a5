"""Kafka's classic groups: members that assign the partitions among themselves."""
