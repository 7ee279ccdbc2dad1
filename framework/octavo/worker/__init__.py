"""A rank's process: it measures, allocates, and runs the plans that the engine's process sends."""
