"""Formats of LoRA adapters, and resolvers that find them."""
