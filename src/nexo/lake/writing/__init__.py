"""How files of the lake are laid out, and how they become part of a table once."""
