"""An embedded server for tests, and the pytest fixture that starts it."""
