"""Users' pipelines: definitions of tables in Python and SQL, run as Spark queries."""
