"""The whole system in one process, on virtual time, from a seed (``docs/design/simulation.md``)."""
