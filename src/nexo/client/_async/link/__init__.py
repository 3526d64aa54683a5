"""One broker's connection: opening, reconnecting, timeouts and pipelining."""
