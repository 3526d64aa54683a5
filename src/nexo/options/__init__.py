"""Options, described once for every layer that reads them or asks for them."""
