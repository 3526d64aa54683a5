"""Lake tables in Spark: its catalog, readers and writers of them."""
