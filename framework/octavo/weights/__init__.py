"""Model folders to tensors on a device: config, safetensors, dummy weights."""
