"""Access control: users, their permissions, and the check before every use case."""
