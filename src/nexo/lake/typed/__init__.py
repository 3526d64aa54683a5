"""Typed columns: values taken apart into columns of the stream's own table (SPEC I11)."""
