"""LoRA adapters: found, read and checked, kept, and given to the device."""
