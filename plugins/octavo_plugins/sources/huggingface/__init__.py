"""Models of the Hugging Face Hub."""

from octavo_registry import LazyRegistry, ModelSource, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_sources(sources: LazyRegistry[ModelSource]) -> None:
    """Add the source "huggingface"."""
    sources.add("huggingface", "octavo_plugins.sources.huggingface.source:HuggingFaceSource")
