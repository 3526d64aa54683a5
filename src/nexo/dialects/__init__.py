"""The protocols that the server speaks, recognised by a connection's first bytes."""
