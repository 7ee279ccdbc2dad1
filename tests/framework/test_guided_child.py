"""What the process that compiles constraints knows before it makes its copies."""

from __future__ import annotations

from octavo.guided.checking import StartChild
from octavo.guided.child import _Compiler
from octavo.guided.schema import formats
from octavo.testing.guided_samples import vocabulary
from octavo_registry import PluginHost


def test_copies_find_the_patterns_of_all_formats_read() -> None:
    formats._parsed.cache_clear()
    start = StartChild.of(PluginHost.discover().manifest(), vocabulary())
    _Compiler(start).learn()
    assert formats._parsed.cache_info().currsize == len(formats.PATTERNS)
