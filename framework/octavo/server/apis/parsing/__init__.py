"""Texts of models, read by the parsers of tools and reasoning, without an engine."""
