"""The guided backend on xgrammar, where the extra ``octavo[xgrammar]`` is installed."""

from importlib.util import find_spec

from octavo_plugins.guided.xgrammar.keywords import KEYWORDS
from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.guided import GuidedBackend

OCTAVO_API = "1"


@hookimpl
def register_guided_backends(backends: LazyRegistry[GuidedBackend]) -> None:
    """Add ``xgrammar``.

    It is not native: it leaves the interpreter lock, but nothing bounds what a mask takes. That of
    ``(([a-z]{0,9}){0,9}){0,9}`` takes a second over 2,000 tokens, and more over a real vocabulary.
    """
    if find_spec("xgrammar") is not None:
        backends.add(
            "xgrammar",
            "octavo_plugins.guided.xgrammar.backend:Backend",
            keywords=KEYWORDS,
            rank=20,
            native=False,
        )
