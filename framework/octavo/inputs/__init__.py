"""Prompts and messages to engine requests: tokenizers, chat templates, limits."""
