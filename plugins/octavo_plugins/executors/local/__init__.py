"""The executor for one device in the engine's own process."""

from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.executor import Executor

OCTAVO_API = "1"


@hookimpl
def register_executors(executors: LazyRegistry[Executor]) -> None:
    """Add ``local``."""
    executors.add("local", "octavo_plugins.executors.local.executor:LocalExecutor")
