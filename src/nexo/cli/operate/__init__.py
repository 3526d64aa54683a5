"""Commands that run, watch and look after a server."""
