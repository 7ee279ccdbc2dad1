"""Each kernel against the limits of the machine: python -m benchmarks.kernels.<op>."""
