"""The lake behind the streams: Arrow, Parquet and Iceberg, without Spark."""
