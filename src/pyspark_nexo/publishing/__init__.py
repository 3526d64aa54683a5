"""What Spark's rows become: batches of records, sent at once or staged and published together."""
