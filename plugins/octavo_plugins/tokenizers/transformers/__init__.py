"""The tokenizers of Hugging Face transformers, loaded from a model folder; the default."""

from __future__ import annotations

from octavo_registry import LazyRegistry, Tokenizer, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_tokenizers(tokenizers: LazyRegistry[Tokenizer]) -> None:
    """Add "auto": AutoTokenizer on the folder's files."""
    tokenizers.add("auto", "octavo_plugins.tokenizers.transformers.tokenizer:TransformersTokenizer")
