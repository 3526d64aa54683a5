"""Many programs that write to one table, in any order, beside a plain model of what is in it."""
