"""The guided backend on LM Format Enforcer: tokens are tried a character at a time."""

from octavo_plugins.guided.text_keywords import TEXT_KEYWORDS
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.guided import GuidedBackend

OCTAVO_API = "1"


@hookimpl
def register_guided_backends(backends: LazyRegistry[GuidedBackend]) -> None:
    """Add ``lm_format_enforcer``."""
    backends.add(
        "lm_format_enforcer",
        "octavo_plugins.guided.lm_format_enforcer.backend:Backend",
        keywords=TEXT_KEYWORDS,
        rank=40,
    )
