"""The paged KV cache on the host: block pool, prefix index, block tables, cache groups."""
