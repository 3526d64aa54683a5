"""The Spark data source and pipeline: the only place that imports pyspark."""
