"""The model that ships with Octavo, made from nothing: see README.md."""
