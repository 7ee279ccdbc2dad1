"""Running a planned step on a device: executors, model runner, device state."""
