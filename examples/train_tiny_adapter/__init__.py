"""Trains the LoRA adapter that ships with Octavo. README.md says how."""
