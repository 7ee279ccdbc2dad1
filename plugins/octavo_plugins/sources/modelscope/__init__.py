"""Models of ModelScope, when OCTAVO_USE_MODELSCOPE=1 asks for them."""

from octavo_registry import LazyRegistry, ModelSource, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_sources(sources: LazyRegistry[ModelSource]) -> None:
    """Add the source "modelscope"."""
    sources.add("modelscope", "octavo_plugins.sources.modelscope.source:ModelScopeSource")
