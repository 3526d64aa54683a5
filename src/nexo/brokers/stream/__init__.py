"""The stream broker: partitioned logs read by shared and ordered groups."""
