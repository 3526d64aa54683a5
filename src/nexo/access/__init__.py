"""Who may do what: users, their permissions, and the guard in front of every handler."""
