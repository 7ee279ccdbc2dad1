"""A plugin with a Llama of which one tensor parallel rank does not bear some tokens."""

from __future__ import annotations

import os
import signal
from typing import Any

from octavo_plugins.models.llama.model import Llama
from octavo_registry import LazyRegistry, ModelCapabilities, hookimpl
from octavo_registry.model import ModelSpec

OCTAVO_API = "1"
RAISES, RAISES_BEHIND, STOPS = 300, 301, 302
"""Tokens at which the second rank raises before any exchange, behind the last, or stands still."""


@hookimpl
def register_models(models: LazyRegistry) -> None:
    models.add(
        "FragileRank",
        "fragile_rank:FragileRank",
        capabilities=ModelCapabilities(tensor_parallel=True),
    )


class FragileRank(Llama):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._is_fragile = spec.tp_rank == 1

    def forward(self, x_TD: Any, step: Any) -> Any:
        out_TD = super().forward(x_TD, step)
        if self._seen == RAISES_BEHIND:
            raise RuntimeError(f"token {self._seen} is too much, at last")
        return out_TD

    def embed(self, tokens_T: Any, media: Any) -> Any:
        found = [token for token in (RAISES, RAISES_BEHIND, STOPS) if (tokens_T == token).any()]
        self._seen = found[0] if found and self._is_fragile else None
        if self._seen == RAISES:
            raise RuntimeError(f"token {self._seen} is too much")
        if self._seen == STOPS:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(tokens_T, media)
