"""What an operator sees of a running Octavo: metrics, traces, logs, usage statistics."""
