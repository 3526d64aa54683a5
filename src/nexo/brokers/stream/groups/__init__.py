"""Consumer groups of a stream as pure state machines: shared (SPEC F) and ordered (SPEC G5-G6)."""
