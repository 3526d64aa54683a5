"""Exactly-once processing: results are kept with the changes they made."""
