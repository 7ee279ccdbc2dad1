"""Formats of stored weights."""
