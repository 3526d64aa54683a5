"""The running service: supervisor, gate, hosts and sessions around the pure engines."""
