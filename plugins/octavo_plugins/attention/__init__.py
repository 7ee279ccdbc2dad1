"""Built-in attention backends."""
