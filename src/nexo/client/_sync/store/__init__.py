"""Keys, counters, maps, lists and sets."""
