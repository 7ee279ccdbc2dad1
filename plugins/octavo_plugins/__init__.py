"""The built-in plugins; they come through the same door as anybody's."""
