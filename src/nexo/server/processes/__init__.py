"""The processes of a server: supervisor, brokers, dashboard, probes."""
