"""What the process that compiles constraints knows before it makes its copies."""

from __future__ import annotations

from typing import NoReturn

from octavo.guided.checking import StartChild
from octavo.guided.child import _Compiler
from octavo.guided.schema import formats
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint


def test_copies_find_the_patterns_of_all_formats_read() -> None:
    formats._parsed.cache_clear()
    start = StartChild.of(PluginHost.discover().manifest(), vocabulary())
    _Compiler(start).learn()
    assert formats._parsed.cache_info().currsize == len(formats.PATTERNS)


class Failing:
    """A backend that takes no schema, and says so in words of its own."""

    def compile(self, constraint: Constraint) -> NoReturn:
        raise ValueError("no schemas, please")


def test_a_backend_that_fails_on_the_formats_ends_no_process() -> None:
    compiler = _Compiler(StartChild.of(PluginHost.discover().manifest(), vocabulary()))
    compiler._backends = dict.fromkeys(compiler._backends, Failing())
    compiler.learn()
