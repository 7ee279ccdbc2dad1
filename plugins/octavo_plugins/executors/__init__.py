"""Executors: what starts and feeds the workers of an engine."""
