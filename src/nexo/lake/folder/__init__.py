"""A lake in a folder: its catalog, and what happens when the folder is moved."""
