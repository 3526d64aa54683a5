"""A small Django project for the tests."""
