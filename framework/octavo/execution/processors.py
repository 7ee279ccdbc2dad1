"""Logits processors of plugins, as a step runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from octavo_registry import LogitsProcessor, PluginHost


class GuardedProcessor:
    """One processor, whose failures are counted and named, and the slots it is attached to."""

    def __init__(
        self, name: str, host: PluginHost, *, vocab_size: int, device: torch.device
    ) -> None:
        self._inner: LogitsProcessor = host.logits_processors.load(name)(vocab_size, device)
        self._plugin = host.logits_processors.info(name).plugin
        self._call = f"logits processor {name!r}"
        self._faults = host.faults
        self._slots: set[int] = set()

    def attach(self, slot: int, extra_args: Mapping[str, Any]) -> None:
        """Begin with a slot's new sequence."""
        with self._faults.guard(self._plugin, self._call, request=True):
            self._inner.attach(slot, extra_args)
        self._slots.add(slot)

    def detach(self, slot: int) -> None:
        """End with a slot's sequence; nothing where its ``attach`` has raised or never came."""
        if slot in self._slots:
            self._slots.remove(slot)
            with self._faults.guard(self._plugin, self._call, request=True):
                self._inner.detach(slot)

    def apply(self, logits_RV: Tensor, slots_R: Tensor) -> Tensor:
        """Change the logits of a step's rows."""
        with self._faults.guard(self._plugin, self._call, request=True):
            return self._inner.apply(logits_RV, slots_R)
