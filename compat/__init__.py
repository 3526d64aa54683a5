"""Other projects' test suites, run against `nexo serve`: ``make compat``."""
