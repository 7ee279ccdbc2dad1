"""Modules with one mistake, for tests that must see it."""

from __future__ import annotations

import inspect
import types


def mutated(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """The module, with one place of its source changed."""
    source = inspect.getsource(module)
    assert source.count(old) == 1
    made = types.ModuleType(module.__name__)
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), made.__dict__)
    return made
