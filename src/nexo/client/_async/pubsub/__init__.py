"""Topics: publish and subscribe."""
