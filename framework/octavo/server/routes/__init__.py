"""The framework's own route groups, one file each."""
