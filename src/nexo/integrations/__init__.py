"""Nexo inside other people's frameworks: one package each."""
