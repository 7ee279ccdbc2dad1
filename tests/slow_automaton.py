"""A backend for tests whose automata are never done."""

from __future__ import annotations

from octavo_registry import LazyRegistry, hookimpl

OCTAVO_API = "1"


@hookimpl
def register_guided_backends(backends: LazyRegistry) -> None:
    target = "slow_automaton:Mill"
    backends.add("mill", target, keywords=("choice",), rank=1, native=True, automata=True)


class Mill:
    def __init__(self, vocabulary) -> None:
        pass

    @staticmethod
    def automaton(constraint):
        while True:
            pass
