"""One broker's connection: it opens, reconnects, times out and pipelines."""
