"""Guides without an engine: for other programs' sampling loops, and to try a constraint out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.guided.choose import AUTO, choose_guide, first_that_compiles
from octavo.guided.vocabulary import read_vocabulary
from octavo.messages import GuideRequest
from octavo.params import GuidedParams
from octavo_registry import PluginHost
from octavo_registry.guided import Constraint, Guide, GuideState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptGuide:
    """A guide, and what it enforces by whom."""

    guide: Guide
    request: GuideRequest
    seconds: float
    """What compiling took, without what it took to load a backend."""

    def start(self) -> GuideState:
        """A new state at the beginning."""
        return self.guide.start()


def compile_guide(
    params: GuidedParams,
    tokenizer: Any,
    *,
    vocab_size: int | None = None,
    stop_token_ids: Sequence[int] | None = None,
    backend: str = AUTO,
    host: PluginHost | None = None,
) -> ReceiptGuide:
    """Compile for a tokenizer of the transformers package.

    Raises ``UnsupportedConstraint``, which names the keyword, where nothing enforces all of it.
    """
    host = host or PluginHost.discover()
    began = time.monotonic()
    request = choose_guide(
        params if params.backend is not None else replace(params, backend=backend), host
    )
    seconds = time.monotonic() - began
    stops = [tokenizer.eos_token_id] if stop_token_ids is None else list(stop_token_ids)
    vocabulary = read_vocabulary(
        tokenizer, vocab_size=vocab_size or len(tokenizer), stop_token_ids=stops
    )

    def compiled(one: GuideRequest) -> Guide:
        nonlocal seconds
        if one.automaton:  # compiled when it was chosen
            from octavo.guided.byte_automaton import automaton_guide  # imports numpy

            return automaton_guide(one.automaton, vocabulary)
        made = host.guided_backends.make(one.backend, vocabulary)
        began = time.monotonic()
        try:
            return made.compile(Constraint(kind=one.kind, value=json.loads(one.value)))
        finally:
            seconds += time.monotonic() - began

    request, guide = first_that_compiles(request, compiled, host)
    return ReceiptGuide(guide=guide, request=request, seconds=seconds)
