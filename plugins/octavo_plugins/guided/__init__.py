"""Backends that hold text to constraints."""
