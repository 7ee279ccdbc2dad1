"""The contract between Octavo and its plugins. Importing it loads neither torch nor a plugin."""
