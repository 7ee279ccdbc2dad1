"""Choosing tokens on the device: one vectorised sampler for mixed parameters."""
