"""Device kernels, one folder an op, each with the plain torch reference that defines it."""
