"""Commands of the pipeline and the lake."""
