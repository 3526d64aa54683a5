"""Typed columns: values parsed into columns of the stream's own table (SPEC I11)."""
