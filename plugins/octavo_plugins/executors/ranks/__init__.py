"""The executor for several ranks of one host, each a process of its own; on CPUs so far."""

from octavo_registry import LazyRegistry, hookimpl
from octavo_registry.executor import Executor

OCTAVO_API = "1"


@hookimpl
def register_executors(executors: LazyRegistry[Executor]) -> None:
    """Add ``ranks``."""
    executors.add("ranks", "octavo_plugins.executors.ranks.executor:RanksExecutor")
