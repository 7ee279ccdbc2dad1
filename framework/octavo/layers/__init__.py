"""What model plugins are made of."""
