"""Reading the tables: which files hold which records, and their rows in order."""
