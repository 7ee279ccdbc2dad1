"""What the server answers: a folder or a file for each group of paths."""
