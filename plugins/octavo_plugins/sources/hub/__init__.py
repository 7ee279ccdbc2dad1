"""What the sources of model hubs share: HTTP with resumed downloads, and the cache on disk."""
