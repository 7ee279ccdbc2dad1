"""Books of what lies in pools of the device for requests, beside the KV cache."""
