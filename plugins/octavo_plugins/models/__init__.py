"""Built-in model architectures."""
